// Adds to each element its right neighbour, in rounds that a barrier over the grid separates.
// Fault: the first thread of a block arrives before the others have written.
static __device__ void wait_for_grid(unsigned *arrived, unsigned goal)
{
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile unsigned *)arrived < goal) {
        }
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void grid_barrier(unsigned *a, unsigned *b, unsigned *arrived, unsigned rounds)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    for (unsigned round = 0; round < rounds; round++) {
        unsigned *from = round % 2 == 0 ? a : b, *to = round % 2 == 0 ? b : a;
        to[i] = from[i] + from[(i + 1) % n]; // fault
        wait_for_grid(arrived, (round + 1) * gridDim.x);
    }
}
