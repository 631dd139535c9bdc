// Prints a line per thread, with each kind of argument.
extern "C" __global__ void print(const float *x)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    printf("thread %u of block %d: %.3f, %llx, %c%s\n", threadIdx.x, blockIdx.x, x[i], 0x123456789abcull + i, 'a' + i, "bc");
}
