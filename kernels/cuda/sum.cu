// The sum of all elements, in a fixed order: see sum.cuh.
//
// Reads 4 bytes per element. `sum` uses one block, for as many elements as a block reads in the
// time of a launch; the other blocks do nothing. `sum_runs` writes a sum for each run of 16384
// elements, with one block per run, and should reach the bandwidth of memory. `sum_tree` adds these
// sums.
#include "sum.cuh"

KERNEL sum(u64 n, const float* __restrict__ x, float* __restrict__ total) {
    if (block() != 0) {
        return;
    }
    const float sum = sum_by_block(n, x);
    if (thread_in_block() == 0) {
        total[0] = sum;
    }
}

KERNEL sum_runs(u64 n, const float* __restrict__ x, float* __restrict__ sums) {
    constexpr u32 CHUNKS = 16, RUN = CHUNKS * CHUNK;
    __shared__ float lanes[CHUNKS * CHUNK_LANES];
    for (u64 run = block(); run * RUN < n; run += blocks()) {
        const u64 left = n - run * RUN;
        const float sum = sum_of_run<CHUNKS>(u32(left < RUN ? left : RUN), x + run * RUN, lanes);
        if (thread_in_block() == 0) {
            sums[run] = sum;
        }
    }
}

KERNEL sum_tree(u64 n, float divisor, const float* __restrict__ sums, float* __restrict__ total) {
    constexpr u32 NODES = 1024;
    __shared__ float nodes[NODES];
    __shared__ Counter counter;
    if (block() != 0) {
        return;
    }
    if (thread_in_block() == 0) {
        counter.depth = 0;
    }
    for (u64 run = 0; run * NODES < n; ++run) {
        const u64 left = n - run * NODES;
        const u32 count = u32(left < NODES ? left : NODES);
        for (u32 i = thread_in_block(); i < count; i += block_threads()) {
            nodes[i] = sums[run * NODES + i];
        }
        __syncthreads();
        add_neighbours(nodes, count, 1);
        if (thread_in_block() == 0) {
            // Thread 0 also overwrites nodes[0] in the next round, so no barrier is needed.
            counter.push(run, nodes[0]);
        }
    }
    if (thread_in_block() == 0) {
        total[0] = counter.total() / divisor;
    }
}
