// Counts the hexadecimal digits of `words` words per thread, in a local array with a dynamic index.
// Writes the most frequent digit, the smallest one of several, and its count.
// Fault: does not clear the counts in local memory.
extern "C" __global__ void local_array(const unsigned *x, unsigned *out, unsigned n, unsigned words)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned counts[16];
    for (unsigned word = 0; word < words; word++)
        for (unsigned rest = x[i * words + word]; rest != 0; rest >>= 4)
            counts[rest & 15]++; // fault
    unsigned best = 0;
    for (unsigned digit = 1; digit < 16; digit++)
        if (counts[digit] > counts[best])
            best = digit;
    out[2 * i] = best;
    out[2 * i + 1] = counts[best];
}
