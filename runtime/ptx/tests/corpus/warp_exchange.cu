// Reverses 32 values per warp twice through shared memory, and adds one between.
extern "C" __global__ void warp_exchange(const unsigned *x, unsigned *y)
{
    __shared__ unsigned values[128];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    values[t] = x[i] * 5;
    __syncwarp();
    unsigned mirrored = values[t ^ 31];
    __syncwarp();
    values[t] = mirrored + t;
    __syncwarp();
    y[i] = values[t ^ 16];
}
