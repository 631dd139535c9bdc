// Counts bytes in a histogram that the blocks of a cluster share: each block keeps 64 of the 256
// counts in its shared memory, and the threads of all of them add to it.
// Fault: a block adds before another one has cleared its counts.
// Compiled for sm_90.
#include <cooperative_groups.h>

extern "C" __global__ void __cluster_dims__(4, 1, 1)
cluster_histogram(const unsigned char *x, unsigned n, unsigned *counts)
{
    __shared__ unsigned own[64];
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    if (threadIdx.x < 64)
        own[threadIdx.x] = 0; // fault
    __syncthreads();
    unsigned threads = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        unsigned *other = cluster.map_shared_rank(own, x[i] / 64);
        atomicAdd(other + x[i] % 64, 1); // fault
    }
    cluster.sync();
    if (threadIdx.x < 64)
        atomicAdd(counts + 64 * cluster.block_rank() + threadIdx.x, own[threadIdx.x]);
}
