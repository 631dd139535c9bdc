// Sums 512 values per block exclusively from the left, by Blelloch's sweeps up and down a tree.
extern "C" __global__ void scan_blelloch(const unsigned *x, unsigned *y)
{
    __shared__ unsigned sums[512];
    unsigned t = threadIdx.x, first = blockIdx.x * 512;
    sums[t] = x[first + t];
    sums[t + 256] = x[first + t + 256];
    __syncthreads();
    for (unsigned distance = 1; distance < 512; distance *= 2) {
        unsigned right = (t + 1) * 2 * distance - 1;
        if (right < 512)
            sums[right] += sums[right - distance];
        __syncthreads();
    }
    if (t == 0)
        sums[511] = 0;
    __syncthreads();
    for (unsigned distance = 256; distance > 0; distance /= 2) {
        unsigned right = (t + 1) * 2 * distance - 1;
        if (right < 512) {
            unsigned left = sums[right - distance];
            sums[right - distance] = sums[right];
            sums[right] += left;
        }
        __syncthreads();
    }
    y[first + t] = sums[t];
    y[first + t + 256] = sums[t + 256];
}
