// Sorts each block's 128 keys stably by one digit of four bits.
// Fault: does not clear the counts of digits that a warp lacks.
extern "C" __global__ void radix_pass(const unsigned *keys, unsigned *out, unsigned shift)
{
    __shared__ unsigned counts[16][4];
    unsigned t = threadIdx.x, warp = t / 32, lane = t % 32;
    unsigned key = keys[blockIdx.x * 128 + t], digit = key >> shift & 15;
    unsigned same = __match_any_sync(0xffffffff, digit);
    unsigned rank = __popc(same & ((1u << lane) - 1));
    if (rank == 0)
        counts[digit][warp] = __popc(same);
    __syncthreads();
    if (t == 0) {
        unsigned sum = 0;
        for (unsigned i = 0; i < 64; i++) {
            unsigned count = counts[i / 4][i % 4]; // fault
            counts[i / 4][i % 4] = sum;
            sum += count;
        }
    }
    __syncthreads();
    out[blockIdx.x * 128 + counts[digit][warp] + rank] = key;
}
