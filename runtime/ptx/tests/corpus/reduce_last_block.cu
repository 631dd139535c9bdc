// Sums all values. Each block publishes its sum, and the last block to do so adds the sums.
extern "C" __global__ void reduce_last_block(const unsigned *x, unsigned *partial, unsigned *finished, unsigned *out, unsigned n)
{
    __shared__ unsigned sums[128];
    __shared__ bool last;
    unsigned t = threadIdx.x, sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    sums[t] = sum;
    __syncthreads();
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (t < stride)
            sums[t] += sums[t + stride];
        __syncthreads();
    }
    if (t == 0) {
        partial[blockIdx.x] = sums[0];
        __threadfence();
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && t == 0) {
        unsigned all = 0;
        for (unsigned block = 0; block < gridDim.x; block++)
            all += partial[block];
        *out = all;
    }
}
