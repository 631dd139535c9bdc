// Sums each block's values inclusively from the left, by Hillis and Steele's doubling steps.
extern "C" __global__ void scan_hillis_steele(const unsigned *x, unsigned *y, unsigned n)
{
    __shared__ unsigned sums[256];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    sums[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned distance = 1; distance < blockDim.x; distance *= 2) {
        unsigned left = t >= distance ? sums[t - distance] : 0;
        __syncthreads();
        sums[t] += left;
        __syncthreads();
    }
    if (i < n)
        y[i] = sums[t];
}
