// Finds the largest float.
// Fault: compares and writes without atomics.
extern "C" __global__ void max_by_cas(const float *x, float *largest, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    if (x[i] > *largest) // fault
        *largest = x[i]; // fault
}
