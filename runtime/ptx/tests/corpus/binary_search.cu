// Finds for each query the first key that is not smaller.
extern "C" __global__ void binary_search(const unsigned *keys, unsigned n, const unsigned *queries, unsigned *places, unsigned m)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m)
        return;
    unsigned from = 0, to = n;
    while (from < to) {
        unsigned middle = (from + to) / 2;
        if (keys[middle] < queries[i])
            from = middle + 1;
        else
            to = middle;
    }
    places[i] = from;
}
