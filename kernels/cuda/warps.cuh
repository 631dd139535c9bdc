// Teams of threads that each take a row, and reductions over the lanes of a team.
//
// In blocks of whole warps, a team is a warp. In any other block one warp is not full, and a team
// is one thread.
#pragma once
#include "threads.cuh"

struct Team {
    u32 lane;  // the number of this thread in its team
    u32 lanes; // WARP or 1
};

__device__ __forceinline__ Team team() {
    const u32 lanes = block_threads() % WARP == 0 ? WARP : 1;
    return {thread_in_block() % lanes, lanes};
}

// Combines `value` over the lanes of `team`, in halves: with the lane 16 away, then 8, 4, 2, 1.
// `combine` takes its arguments in either order, so all lanes get the same result.
template <class T, class F>
__device__ __forceinline__ T over_lanes(const Team& team, T value, F combine) {
    if (team.lanes == WARP) {
#pragma unroll
        for (u32 half = WARP / 2; half > 0; half /= 2) {
            value = combine(value, __shfl_xor_sync(0xffffffffu, value, half));
        }
    }
    return value;
}
