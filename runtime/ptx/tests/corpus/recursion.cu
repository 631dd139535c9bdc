// Computes Fibonacci numbers by recursion, with a different depth in each lane.
static __device__ __noinline__ unsigned fibonacci(unsigned n)
{
    if (n < 2)
        return n;
    return fibonacci(n - 1) + fibonacci(n - 2);
}

extern "C" __global__ void recursion(unsigned *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = fibonacci(i % 12);
}
