// Multiplies two matrices by tiles in shared memory.
// Fault: no barrier between the products and the loads of the next tiles.
extern "C" __global__ void matmul_tiled(const float *a, const float *b, float *c, unsigned rows, unsigned inner, unsigned columns)
{
    __shared__ float left[8][8], right[8][8];
    unsigned x = threadIdx.x, y = threadIdx.y;
    unsigned row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
    float sum = 0.0f;
    for (unsigned first = 0; first < inner; first += 8) {
        left[y][x] = row < rows && first + x < inner ? a[row * inner + first + x] : 0.0f; // fault
        right[y][x] = first + y < inner && column < columns ? b[(first + y) * columns + column] : 0.0f; // fault
        __syncthreads();
        for (unsigned k = 0; k < 8; k++)
            sum = fmaf(left[y][k], right[k][x], sum); // fault
    }
    if (row < rows && column < columns)
        c[row * columns + column] = sum;
}
