// Sums inclusively from the left within the segments of each warp. A zero link starts a segment.
// Fault: the mask of the shuffle lacks lane 31, which executes it.
extern "C" __global__ void segmented_scan(const unsigned *x, const unsigned *links, unsigned *y)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    unsigned value = x[i];
    unsigned starts = __ballot_sync(0xffffffff, links[i] == 0) | 1;
    unsigned start = 31 - __clz(starts & (0xffffffff >> (31 - lane)));
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        unsigned left = __shfl_up_sync(0x7fffffff, value, distance); // fault
        if (lane >= start + distance)
            value += left;
    }
    y[i] = value;
}
