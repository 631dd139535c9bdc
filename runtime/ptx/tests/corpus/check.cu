// Doubles each value, and asserts that it is below a limit.
extern "C" __global__ void check(const unsigned *x, unsigned *y, unsigned limit)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] < limit);
    y[i] = 2 * x[i];
}
