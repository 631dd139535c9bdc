// Streams tiles from a producer warp to a consumer warp through two buffers. Barriers 1 and 2 say
// that a buffer is full, barriers 3 and 4 that it is empty. The consumer sums every tile reversed.
// Fault: the consumer says that a buffer is empty before it reads it.
static __device__ void arrive(unsigned barrier) { asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory"); }
static __device__ void wait(unsigned barrier) { asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory"); }

extern "C" __global__ void double_buffer(const unsigned *x, unsigned *y, unsigned tiles)
{
    __shared__ unsigned buffers[2][32];
    unsigned lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (unsigned tile = 0; tile < tiles; tile++) {
            if (tile >= 2)
                wait(3 + tile % 2);
            buffers[tile % 2][lane] = x[tile * 32 + lane]; // fault
            arrive(1 + tile % 2);
        }
    } else {
        unsigned sum = 0;
        for (unsigned tile = 0; tile < tiles; tile++) {
            wait(1 + tile % 2);
            if (tile + 2 < tiles)
                arrive(3 + tile % 2);
            sum += buffers[tile % 2][31 - lane] * (tile + 1); // fault
        }
        y[lane] = sum;
    }
}
