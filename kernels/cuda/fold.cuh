// A reduction by one block, in an order that does not depend on how many threads the block has.
#pragma once
#include "threads.cuh"

// Lane l of so many has combined the elements l, l + LANES, l + 2·LANES, … in this order.
constexpr u32 LANES = 1024;

// The sum of all lanes, for thread 0 of the block, whose threads all call this: lane l adds lane l + 512, then l + 256, and so on down
// to 1. `lanes` is shared memory.
template <class T>
__device__ __forceinline__ T folded(T* lanes) {
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        for (u32 l = thread_in_block(); l < half; l += block_threads()) {
            lanes[l] += lanes[l + half];
        }
    }
    // Thread 0 added the last two itself.
    return thread_in_block() == 0 ? lanes[0] : T(0);
}
