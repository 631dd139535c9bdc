// The mean of all elements: their sum, in the order of sum.cuh, divided by their number.
//
// Reads 4 bytes per element. Uses one block, for as many elements as a block reads in the time of a
// launch. For more elements there are `sum_runs` and `sum_tree`.
#include "sum.cuh"

KERNEL mean(u64 n, const float* __restrict__ x, float* __restrict__ mean) {
    if (block() != 0) {
        return;
    }
    const float sum = sum_by_block(n, x);
    if (thread_in_block() == 0) {
        mean[0] = sum / float(n);
    }
}
