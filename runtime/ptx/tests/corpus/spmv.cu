// Multiplies a sparse matrix by rows (CSR) by a vector. A thread sums one row.
extern "C" __global__ void spmv(const unsigned *offsets, const unsigned *columns, const float *values, const float *x,
                                float *y, unsigned rows)
{
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (unsigned k = offsets[row]; k < offsets[row + 1]; k++)
        sum = fmaf(values[k], x[columns[k]], sum);
    y[row] = sum;
}
