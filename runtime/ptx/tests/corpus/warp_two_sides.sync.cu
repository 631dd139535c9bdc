// Sums values over each warp. Odd and even values take two sides of a branch, with shuffles in
// each, whose loops the compiler unrolls.
// Fault: one side stops a step early, so the other one waits for lanes that have exited.
extern "C" __global__ void warp_two_sides(const unsigned *x, unsigned *y)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = x[i];
    if (value % 2 == 1) {
        value = value * 3;
        for (unsigned step = 1; step < 32; step *= 2)
            value += __shfl_xor_sync(0xffffffff, value, step); // fault
        value = value * 5;
    } else {
        value = value + 7;
        for (unsigned step = 1; step < 16; step *= 2)
            value += __shfl_xor_sync(0xffffffff, value, step);
    }
    y[i] = value;
}
