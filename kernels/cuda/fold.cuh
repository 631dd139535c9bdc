// A reduction by one block, in an order that does not depend on the number of its threads.
#pragma once
#include "threads.cuh"

// The number of lanes. Lane l has combined the elements l, l + LANES, l + 2·LANES, … in this order.
constexpr u32 LANES = 1024;

// Combines all lanes and returns the result to all threads of the block, which all call this. Lane
// l takes in lane l + 512, then l + 256, and so on down to l + 1. `lanes` is shared memory, and may
// be written again after a barrier.
template <class T, class F>
__device__ __forceinline__ T folded(T* lanes, F combine) {
    for (u32 half = LANES / 2; half > 1; half /= 2) {
        __syncthreads();
        for (u32 l = thread_in_block(); l < half; l += block_threads()) {
            lanes[l] = combine(lanes[l], lanes[l + half]);
        }
    }
    __syncthreads();
    // The last step writes nothing to `lanes`, which all threads read.
    return combine(lanes[0], lanes[1]);
}

// Returns the sum of all lanes, as above.
template <class T>
__device__ __forceinline__ T folded(T* lanes) {
    return folded(lanes, [](T a, T b) { return a + b; });
}
