// Evaluates a cubic polynomial at each element, in a loop that steps by the size of the grid.
extern "C" __global__ void grid_stride(const float *x, float *y, unsigned n)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = fmaf(fmaf(fmaf(0.5f, x[i], -2.0f), x[i], 3.0f), x[i], 1.0f);
}
