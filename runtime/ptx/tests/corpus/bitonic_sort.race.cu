// Sorts 256 keys per block in shared memory by a bitonic network.
// Fault: no barrier between the steps of the network.
extern "C" __global__ void bitonic_sort(unsigned *data)
{
    __shared__ unsigned keys[256];
    unsigned t = threadIdx.x;
    keys[t] = data[blockIdx.x * 256 + t];
    keys[t + 128] = data[blockIdx.x * 256 + t + 128];
    __syncthreads();
    for (unsigned size = 2; size <= 256; size *= 2) {
        for (unsigned distance = size / 2; distance > 0; distance /= 2) {
            unsigned left = 2 * t - (t & (distance - 1)), right = left + distance;
            bool ascending = (left & size) == 0;
            unsigned a = keys[left], b = keys[right]; // fault
            if ((a > b) == ascending) {
                keys[left] = b; // fault
                keys[right] = a; // fault
            }
        }
    }
    data[blockIdx.x * 256 + t] = keys[t]; // fault
    data[blockIdx.x * 256 + t + 128] = keys[t + 128]; // fault
}
