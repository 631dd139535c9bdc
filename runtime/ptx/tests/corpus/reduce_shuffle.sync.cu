// Sums each block's values by shuffles within warps, then by shuffles over the warps' sums.
// Fault: half the lanes shuffle with a mask of all lanes, and the others wait at the barrier.
extern "C" __global__ void reduce_shuffle(const unsigned *x, unsigned *out, unsigned n)
{
    __shared__ unsigned sums[32];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    unsigned sum = i < n ? x[i] : 0;
    for (unsigned distance = 16; t % 32 < 16 && distance > 0; distance /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, distance); // fault
    if (t % 32 == 0)
        sums[t / 32] = sum;
    __syncthreads(); // fault
    if (t < 32) {
        sum = t < blockDim.x / 32 ? sums[t] : 0;
        for (unsigned distance = 16; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if (t == 0)
            out[blockIdx.x] = sum;
    }
}
