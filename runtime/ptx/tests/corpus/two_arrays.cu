// Mixes each thread's value with its mirror image's, by two arrays in one piece of dynamic shared
// memory: doubles first, then floats.
extern "C" __global__ void two_arrays(const float *x, double *y)
{
    extern __shared__ __align__(16) unsigned char memory[];
    double *squares = reinterpret_cast<double *>(memory);
    float *values = reinterpret_cast<float *>(squares + blockDim.x);
    unsigned t = threadIdx.x, mirror = blockDim.x - 1 - t, i = blockIdx.x * blockDim.x + t;
    squares[t] = static_cast<double>(x[i]) * x[i];
    values[t] = x[i];
    __syncthreads();
    y[i] = squares[mirror] + values[mirror];
}
