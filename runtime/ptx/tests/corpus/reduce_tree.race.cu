// Sums each block's values in a tree in shared memory.
// Fault: no barrier between the levels of the tree.
extern "C" __global__ void reduce_tree(const unsigned *x, unsigned *out, unsigned n)
{
    __shared__ unsigned sums[256];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    sums[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2)
        if (t < stride)
            sums[t] += sums[t + stride]; // fault
    if (t == 0)
        out[blockIdx.x] = sums[0];
}
