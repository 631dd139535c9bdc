// Sums eight words from a generic address in global, shared or local memory, as each thread's
// number modulo three says, and adds one to the first word there.
static __device__ __noinline__ unsigned sum_of_eight(unsigned *words)
{
    unsigned sum = 0;
    for (unsigned k = 0; k < 8; k++)
        sum += words[k] * (k + 1);
    words[0]++;
    return sum;
}

extern "C" __global__ void generic_pointers(unsigned *x, unsigned *y)
{
    __shared__ unsigned shared[64 * 8];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t, local[8];
    for (unsigned k = 0; k < 8; k++) {
        shared[t * 8 + k] = x[i * 8 + k] + 1;
        local[k] = x[i * 8 + k] + 2;
    }
    unsigned *words = i % 3 == 0 ? &x[i * 8] : i % 3 == 1 ? &shared[t * 8] : local;
    unsigned sum = sum_of_eight(words);
    y[i] = sum + local[0] + shared[t * 8];
}
