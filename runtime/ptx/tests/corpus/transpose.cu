// Transposes a matrix by tiles in shared memory. A column of padding avoids bank conflicts.
extern "C" __global__ void transpose(const float *x, float *y, unsigned rows, unsigned columns)
{
    __shared__ float tile[16][17];
    unsigned column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row < rows && column < columns)
        tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
    __syncthreads();
    row = blockIdx.y * 16 + threadIdx.x;
    column = blockIdx.x * 16 + threadIdx.y;
    if (row < rows && column < columns)
        y[column * rows + row] = tile[threadIdx.x][threadIdx.y];
}
