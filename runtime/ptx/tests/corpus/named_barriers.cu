// Sums two halves of each block independently; each half waits at a barrier of its own.
extern "C" __global__ void named_barriers(const unsigned *x, unsigned *out)
{
    __shared__ unsigned sums[128];
    unsigned t = threadIdx.x, half = t / 64;
    sums[t] = x[blockIdx.x * 128 + t];
    if (half == 0)
        asm volatile("bar.sync 1, 64;" ::: "memory");
    else
        asm volatile("bar.sync 2, 64;" ::: "memory");
    for (unsigned stride = 32; stride > 0; stride /= 2) {
        if (t % 64 < stride)
            sums[t] += sums[t + stride];
        asm volatile("bar.sync %0, 64;" ::"r"(half + 1) : "memory");
    }
    if (t % 64 == 0)
        out[blockIdx.x * 2 + half] = sums[t];
}
