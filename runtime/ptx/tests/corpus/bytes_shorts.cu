// Averages two rows of unsigned bytes, and multiplies their difference by a signed byte.
extern "C" __global__ void bytes_shorts(const unsigned char *a, const unsigned char *b, const signed char *weight,
                                        unsigned char *mean, short *product, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    mean[i] = (a[i] + b[i] + 1) / 2;
    product[i] = (a[i] - b[i]) * weight[i];
}
