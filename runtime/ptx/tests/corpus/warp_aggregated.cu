// Lists the indices of values above a threshold. The active lanes of a warp share one atomic add.
extern "C" __global__ void warp_aggregated(const unsigned *x, unsigned threshold, unsigned *out, unsigned *count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] <= threshold)
        return;
    unsigned lane, before;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
    unsigned active = __activemask();
    unsigned leader = __ffs(active) - 1, base = 0;
    if (lane == leader)
        base = atomicAdd(count, __popc(active));
    base = __shfl_sync(active, base, leader);
    out[base + __popc(active & before)] = i;
}
