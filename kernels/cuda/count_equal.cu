// The number of equal elements of two vectors.
//
// Reads 16 bytes per element and writes 8 bytes. One block does all the work, at the speed of one
// multiprocessor, 37 GB/s on an H100. That is enough for the labels of a batch. Other blocks of a
// launch do nothing.
#include "fold.cuh"

KERNEL count_equal(u64 n, const i64* __restrict__ x, const i64* __restrict__ y, i64* __restrict__ count) {
    __shared__ i64 lanes[LANES];
    if (block() != 0) {
        return;
    }
    for (u32 l = thread_in_block(); l < LANES; l += block_threads()) {
        i64 equal = 0;
#pragma unroll 8
        for (u64 i = l; i < n; i += LANES) {
            equal += x[i] == y[i];
        }
        lanes[l] = equal;
    }
    const i64 total = folded(lanes);
    if (thread_in_block() == 0) {
        count[0] = total;
    }
}
