// Merges two sorted arrays. Each thread finds by binary search where its four results begin.
extern "C" __global__ void merge(const unsigned *a, unsigned n, const unsigned *b, unsigned m, unsigned *out)
{
    unsigned first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (first >= n + m)
        return;
    unsigned from = first > m ? first - m : 0, to = first < n ? first : n;
    while (from < to) {
        unsigned middle = (from + to) / 2;
        if (a[middle] <= b[first - 1 - middle])
            from = middle + 1;
        else
            to = middle;
    }
    unsigned i = from, j = first - from;
    for (unsigned k = first; k < first + 4 && k < n + m; k++) {
        bool left = j >= m || (i < n && a[i] <= b[j]);
        out[k] = left ? a[i] : b[j];
        left ? i++ : j++;
    }
}
