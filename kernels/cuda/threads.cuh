// Which thread of the launch this is, whatever the shape of its grid and blocks.
//
// A kernel may be launched with any configuration that CUDA takes: what a configuration decides is how fast it is, never what it
// reads and writes. So every kernel counts its threads and blocks through this file, and none relies on a size it hopes for.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// The head of a kernel, up to its name, which is that of its descriptor. Blocks may have up to `block_threads` threads; a larger
// one is refused at the launch. The 1 gives the compiler all registers that such a block leaves: 64 with the 1024 that CUDA allows.
#define KERNEL_OF(block_threads) extern "C" __global__ void __launch_bounds__(block_threads, 1)
#define KERNEL KERNEL_OF(1024)

// Threads of the hardware that run in step and can shuffle: consecutive ones of a block.
constexpr u32 WARP = 32;

__device__ __forceinline__ u32 block_threads() {
    return blockDim.x * blockDim.y * blockDim.z;
}

// Below block_threads().
__device__ __forceinline__ u32 thread_in_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ u64 blocks() {
    return u64(gridDim.x) * gridDim.y * gridDim.z;
}

// Below blocks().
__device__ __forceinline__ u64 block() {
    return blockIdx.x + u64(gridDim.x) * (blockIdx.y + u64(gridDim.y) * blockIdx.z);
}

// All threads of the launch. Grids of more than 2^53 blocks would overflow it; no device lives to finish one.
__device__ __forceinline__ u64 threads() {
    return blocks() * block_threads();
}

// Below threads().
__device__ __forceinline__ u64 thread() {
    return block() * block_threads() + thread_in_block();
}
