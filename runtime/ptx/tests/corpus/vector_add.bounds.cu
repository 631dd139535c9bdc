// Adds two vectors.
// Fault: reads and writes one element past the arrays.
extern "C" __global__ void vector_add(const float *x, const float *y, float *z, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        z[i] = x[i] + y[i]; // fault
}
