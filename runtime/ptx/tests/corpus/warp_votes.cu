// Votes in each warp, and shuffles within its quarters.
extern "C" __global__ void warp_votes(const int *x, unsigned *votes, int *moved)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = x[i];
    unsigned ballot = __ballot_sync(0xffffffff, value > 0);
    unsigned any = __any_sync(0xffffffff, value > 2000000000), all = __all_sync(0xffffffff, value > -2000000000);
    votes[i] = ballot ^ (any << 1) ^ all;
    int first = __shfl_sync(0xffffffff, value, 0, 8), up = __shfl_up_sync(0xffffffff, value, 3, 8);
    int down = __shfl_down_sync(0xffffffff, value, 2, 8), crossed = __shfl_xor_sync(0xffffffff, value, 5, 8);
    moved[i] = first + 2 * up + 3 * down + 5 * crossed;
}
