// Adds to each element its left and right neighbours in its cluster, from the shared memory of the
// blocks beside its own.
// Compiled for sm_90.
#include <cooperative_groups.h>

extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster_stencil(const unsigned *x, unsigned *y)
{
    __shared__ unsigned own[64];
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks(), t = threadIdx.x;
    unsigned first = blockIdx.y * gridDim.x + blockIdx.x;
    own[t] = x[first * blockDim.x + t];
    cluster.sync();
    unsigned sum = own[t];
    sum += t > 0 ? own[t - 1] : rank > 0 ? cluster.map_shared_rank(own, rank - 1)[63] : 0;
    sum += t < 63 ? own[t + 1] : rank + 1 < blocks ? *cluster.map_shared_rank(own, rank + 1) : 0;
    y[first * blockDim.x + t] = sum;
    cluster.sync();
}
