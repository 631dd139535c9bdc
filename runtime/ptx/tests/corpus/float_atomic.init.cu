// Adds floats and doubles to buckets by atomics, in shared and in global memory.
// Fault: does not clear the last bucket in shared memory.
extern "C" __global__ void float_atomic(const float *x, float *sums, double *wide, unsigned buckets)
{
    __shared__ float mine[16];
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t + 1 < buckets)
        mine[t] = 0.0f;
    __syncthreads();
    atomicAdd(&mine[i % buckets], x[i]); // fault
    atomicAdd(&wide[i % buckets], static_cast<double>(x[i]));
    __syncthreads();
    if (t < buckets)
        atomicAdd(&sums[t], mine[t]);
}
