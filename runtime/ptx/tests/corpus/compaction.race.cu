// Copies the odd values to the front of the result. A warp reserves its places by one atomic add.
// Fault: reserves places by a plain read and a plain write.
extern "C" __global__ void compaction(const unsigned *x, unsigned *out, unsigned *count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    unsigned value = x[i];
    unsigned kept = __ballot_sync(0xffffffff, value & 1);
    unsigned base = 0;
    if (lane == 0) {
        base = *count; // fault
        *count = base + __popc(kept); // fault
    }
    base = __shfl_sync(0xffffffff, base, 0);
    if (value & 1)
        out[base + __popc(kept & ((1u << lane) - 1))] = value; // fault
}
