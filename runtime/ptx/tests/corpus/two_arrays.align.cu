// Mixes each thread's value with its mirror image's, by two arrays in one piece of dynamic shared
// memory.
// Fault: floats first, so an odd number of threads misaligns the doubles.
extern "C" __global__ void two_arrays(const float *x, double *y)
{
    extern __shared__ __align__(16) unsigned char memory[];
    float *values = reinterpret_cast<float *>(memory);
    double *squares = reinterpret_cast<double *>(values + blockDim.x);
    unsigned t = threadIdx.x, mirror = blockDim.x - 1 - t, i = blockIdx.x * blockDim.x + t;
    squares[t] = static_cast<double>(x[i]) * x[i]; // fault
    values[t] = x[i];
    __syncthreads();
    y[i] = squares[mirror] + values[mirror];
}
