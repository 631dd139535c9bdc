// Adds floats and doubles to buckets by atomics, in shared and in global memory.
extern "C" __global__ void float_atomic(const float *x, float *sums, double *wide, unsigned buckets)
{
    __shared__ float mine[16];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t < buckets)
        mine[t] = 0.0f;
    __syncthreads();
    atomicAdd(&mine[i % buckets], x[i]);
    atomicAdd(&wide[i % buckets], static_cast<double>(x[i]));
    __syncthreads();
    if (t < buckets)
        atomicAdd(&sums[t], mine[t]);
}
