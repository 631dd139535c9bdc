// Adds to each element the next one of its tile. A tile is copied while the one before is used.
// Compiled for sm_80.
__device__ void copy(unsigned *to, const unsigned *from)
{
    unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(__cvta_generic_to_global(from)) : "memory");
}

extern "C" __global__ void async_tiles(const unsigned *x, unsigned *y, unsigned tiles)
{
    __shared__ unsigned buffer[2][128];
    unsigned t = threadIdx.x, start = blockIdx.x * tiles * 128 + t;
    copy(&buffer[0][t], &x[start]);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (unsigned tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles)
            copy(&buffer[(tile + 1) % 2][t], &x[start + (tile + 1) * 128]);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        y[start + tile * 128] = buffer[tile % 2][t] + buffer[tile % 2][(t + 1) % 128];
        __syncthreads();
    }
}
