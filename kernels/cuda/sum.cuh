// Sums in the order that kernels/src/sum.rs documents, so that they have the same bits as the
// twin's.
//
// A chunk has 1024 elements in 32 lanes, which are folded in halves. Then a tree adds the chunks,
// neighbours first. A run is a power of two of chunks, so its sum is a node of that tree. The tree
// continues above the runs as it does above the chunks.
#pragma once
#include "threads.cuh"

constexpr u32 CHUNK = 1024;
constexpr u32 CHUNK_LANES = 32;

// Adds the `count` nodes that are `apart` floats from each other, as neighbours. Node 0 becomes the
// sum. All threads of the block call this, and a barrier follows each round of additions. `count`
// is not 0.
__device__ __forceinline__ void add_neighbours(float* nodes, u32 count, u32 apart) {
    for (u32 step = 1; step < count; step *= 2) {
        for (u32 i = thread_in_block() * 2 * step; i + step < count; i += block_threads() * 2 * step) {
            nodes[i * apart] += nodes[(i + step) * apart];
        }
        __syncthreads();
    }
}

// Returns the sum of a run of `n` elements, 1 to CHUNKS · CHUNK of them, to thread 0 of the block,
// and 0 to the others. All threads of the block call this. `lanes` is shared memory for CHUNKS ·
// CHUNK_LANES floats. The next run may follow immediately: after the last barrier only thread 0
// reads lanes[0], and the same thread overwrites it.
template <u32 CHUNKS>
__device__ __forceinline__ float sum_of_run(u32 n, const float* __restrict__ x, float* lanes) {
    const u32 chunks = (n - 1) / CHUNK + 1;
    for (u32 i = thread_in_block(); i < chunks * CHUNK_LANES; i += block_threads()) {
        const u32 start = i / CHUNK_LANES * CHUNK, first = start + i % CHUNK_LANES;
        float sum = 0.0f;
        if (start + CHUNK <= n) {
            // Each addition waits for the one before it, but loads do not. Unrolling keeps as many
            // loads in flight as registers allow.
#pragma unroll
            for (u32 k = 0; k < CHUNK / CHUNK_LANES; ++k) {
                sum += x[first + k * CHUNK_LANES];
            }
        } else {
            for (u32 e = first; e < n; e += CHUNK_LANES) {
                sum += x[e];
            }
        }
        lanes[i] = sum;
    }
    __syncthreads();
#pragma unroll
    for (u32 half = CHUNK_LANES / 2; half > 0; half /= 2) {
        for (u32 i = thread_in_block(); i < chunks * half; i += block_threads()) {
            float* lane = &lanes[i / half * CHUNK_LANES + i % half];
            lane[0] += lane[half];
        }
        __syncthreads();
    }
    add_neighbours(lanes, chunks, CHUNK_LANES);
    return thread_in_block() == 0 ? lanes[0] : 0.0f;
}

// A binary counter: the sums of runs so far, longest first. Run r completes one pair for each
// trailing one bit of r. Only one thread uses it.
struct Counter {
    float sums[64];
    u32 depth;

    __device__ __forceinline__ void push(u64 run, float sum) {
        for (; run % 2 == 1; run /= 2) {
            sum = sums[--depth] + sum;
        }
        sums[depth++] = sum;
    }

    // Returns the sum of all runs, or +0 if there are none.
    __device__ __forceinline__ float total() {
        float sum = depth > 0 ? sums[--depth] : 0.0f;
        while (depth > 0) {
            sum = sums[--depth] + sum;
        }
        return sum;
    }
};

// Returns the sum of the first `n` elements of `x` to thread 0 of the block, and 0 to the others.
// All threads of the block call this.
__device__ __forceinline__ float sum_by_block(u64 n, const float* __restrict__ x) {
    constexpr u32 CHUNKS = 32, RUN = CHUNKS * CHUNK;
    __shared__ float lanes[CHUNKS * CHUNK_LANES];
    __shared__ Counter counter;
    if (thread_in_block() == 0) {
        counter.depth = 0;
    }
    for (u64 run = 0; run * RUN < n; ++run) {
        const u64 left = n - run * RUN;
        const float sum = sum_of_run<CHUNKS>(u32(left < RUN ? left : RUN), x + run * RUN, lanes);
        if (thread_in_block() == 0) {
            counter.push(run, sum);
        }
    }
    return thread_in_block() == 0 ? counter.total() : 0.0f;
}
