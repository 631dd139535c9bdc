// Multiplies a matrix by a vector. A warp sums one row.
// Fault: lanes past the columns return, and the shuffles read from them.
extern "C" __global__ void matrix_vector(const float *a, const float *x, float *y, unsigned columns)
{
    unsigned row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (lane >= columns)
        return;
    float sum = 0.0f;
    for (unsigned column = lane; column < columns; column += 32)
        sum = fmaf(a[row * columns + column], x[column], sum);
    for (unsigned distance = 16; distance > 0; distance /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, distance); // fault
    if (lane == 0)
        y[row] = sum;
}
