// Finds the lanes of a warp with keys in the same eight, sums their values, and shares the sum.
extern "C" __global__ void warp_groups(const unsigned *keys, const unsigned *x, unsigned *peers, unsigned *sums, unsigned *uniform)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned group = __match_any_sync(0xffffffff, keys[i] / 8);
    unsigned sum = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned other = __shfl_sync(0xffffffff, x[i], lane);
        if (group >> lane & 1)
            sum += other;
    }
    peers[i] = group;
    sums[i] = __shfl_sync(group, sum, __ffs(group) - 1);
    int same;
    __match_all_sync(0xffffffff, keys[i] / 64, &same);
    uniform[i] = same;
}
