// Sorts 128 keys per block by exchanges of neighbours, at even and at odd places alternately.
// Fault: in odd phases the last thread reads one key past shared memory.
extern "C" __global__ void odd_even_sort(unsigned *data)
{
    __shared__ unsigned keys[128];
    unsigned t = threadIdx.x;
    keys[t] = data[blockIdx.x * 128 + t];
    keys[t + 64] = data[blockIdx.x * 128 + t + 64];
    __syncthreads();
    for (unsigned phase = 0; phase < 128; phase++) {
        unsigned left = 2 * t + phase % 2;
        if (left < 128) {
            unsigned a = keys[left], b = keys[left + 1]; // fault
            if (a > b) {
                keys[left] = b;
                keys[left + 1] = a;
            }
        }
        __syncthreads();
    }
    data[blockIdx.x * 128 + t] = keys[t];
    data[blockIdx.x * 128 + t + 64] = keys[t + 64];
}
