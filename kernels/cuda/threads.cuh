// The number of a thread in the launch, whatever the shape of the grid and its blocks.
//
// A kernel may be launched with any configuration that CUDA accepts. The configuration decides how
// fast the kernel is, never what it reads and writes. So every kernel counts its threads and blocks
// through this file, and none relies on a particular size.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// The head of a kernel, up to its name, which is the name of its descriptor. Blocks may have up to
// `block_threads` threads; the driver refuses larger blocks at launch. The 1 gives the compiler all
// registers that such a block leaves: 64 per thread with the 1024 threads that CUDA allows.
#define KERNEL_OF(block_threads) extern "C" __global__ void __launch_bounds__(block_threads, 1)
#define KERNEL KERNEL_OF(1024)

// The number of threads in a warp: consecutive threads of a block, which can exchange values by
// shuffles.
constexpr u32 WARP = 32;

__device__ __forceinline__ u32 block_threads() {
    return blockDim.x * blockDim.y * blockDim.z;
}

// Returns the thread's number in its block, below block_threads().
__device__ __forceinline__ u32 thread_in_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ u64 blocks() {
    return u64(gridDim.x) * gridDim.y * gridDim.z;
}

// Returns the block's number in the grid, below blocks().
__device__ __forceinline__ u64 block() {
    return blockIdx.x + u64(gridDim.x) * (blockIdx.y + u64(gridDim.y) * blockIdx.z);
}

// Returns the number of threads in the launch. It overflows for 2^54 blocks of 1024 threads, but no
// device would ever finish such a grid.
__device__ __forceinline__ u64 threads() {
    return blocks() * block_threads();
}

// Returns the thread's number in the launch, below threads().
__device__ __forceinline__ u64 thread() {
    return block() * block_threads() + thread_in_block();
}
