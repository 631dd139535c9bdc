// Convolves a row with weights in constant memory. The row has `taps` - 1 elements more than `y`.
__constant__ float weights[8] = {0.5f, -0.25f, 0.125f, 1.0f, -1.0f, 0.75f, 2.0f, -0.5f};

extern "C" __global__ void constant_convolution(const float *x, float *y, unsigned n, unsigned taps)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float sum = 0.0f;
    for (unsigned k = 0; k < taps; k++)
        sum = fmaf(weights[k], x[i + k], sum);
    y[i] = sum;
}
