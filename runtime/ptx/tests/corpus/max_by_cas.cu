// Finds the largest float, by a loop of compare-and-swap on its bits.
extern "C" __global__ void max_by_cas(const float *x, float *largest, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int *bits = reinterpret_cast<int *>(largest);
    int seen = atomicCAS(bits, 0, 0);
    while (x[i] > __int_as_float(seen)) {
        int before = atomicCAS(bits, seen, __float_as_int(x[i]));
        if (before == seen)
            break;
        seen = before;
    }
}
