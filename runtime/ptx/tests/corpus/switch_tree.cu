// Applies a list of operations to each element, by a switch. Some of its cases fall through.
extern "C" __global__ void switch_tree(const unsigned *operations, unsigned steps, const unsigned *x, unsigned *y, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned value = x[i];
    for (unsigned step = 0; step < steps; step++) {
        switch (operations[i * steps + step]) {
        case 0: value += i; break;
        case 1: value *= 2654435761u; // falls through
        case 2: value ^= value >> 15; break;
        case 3: value = __brev(value); break;
        case 4: value = value / 7 + 1; break;
        case 5: value -= step; // falls through
        case 6: value = __popc(value) << step; break;
        case 7: value = value % 1000; break;
        case 8: value = value << 3 | value >> 29; break;
        case 9: value &= 0x00ffff00; break;
        case 10: value = min(value, 123456789u); break;
        case 11: value = value * value + 1; break;
        default: value = ~value;
        }
    }
    y[i] = value;
}
