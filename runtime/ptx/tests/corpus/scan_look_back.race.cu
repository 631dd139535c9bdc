// Sums inclusively from the left in a single pass. Each tile publishes its total, then adds the
// totals of the tiles before it until it meets one that has published its prefix.
// Fault: no fence between the prefix and the flag that publishes it.
extern "C" __global__ void scan_look_back(const unsigned *x, unsigned *y, unsigned *next, unsigned *flags,
                                          unsigned *totals, unsigned *prefixes)
{
    __shared__ unsigned sums[128];
    __shared__ unsigned tile, before;
    unsigned t = threadIdx.x;
    if (t == 0)
        tile = atomicAdd(next, 1);
    __syncthreads();
    unsigned i = tile * blockDim.x + t;
    sums[t] = x[i];
    __syncthreads();
    for (unsigned distance = 1; distance < blockDim.x; distance *= 2) {
        unsigned left = t >= distance ? sums[t - distance] : 0;
        __syncthreads();
        sums[t] += left;
        __syncthreads();
    }
    if (t == 0) {
        unsigned total = sums[blockDim.x - 1], sum = 0;
        totals[tile] = total;
        __threadfence();
        atomicExch(&flags[tile], 1);
        for (unsigned other = tile; other > 0; other--) {
            unsigned flag;
            do
                flag = *(volatile unsigned *)&flags[other - 1];
            while (flag == 0);
            __threadfence();
            if (flag == 2) {
                sum += prefixes[other - 1]; // fault
                break;
            }
            sum += totals[other - 1];
        }
        prefixes[tile] = sum + total; // fault
        atomicExch(&flags[tile], 2);
        before = sum;
    }
    __syncthreads();
    y[i] = before + sums[t];
}
