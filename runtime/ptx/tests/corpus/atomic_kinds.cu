// Combines all values by each kind of atomic operation on words of 32 and 64 bits.
extern "C" __global__ void atomic_kinds(const unsigned *x, unsigned *words, int *numbers, unsigned long long *wide)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = x[i];
    unsigned long long both = static_cast<unsigned long long>(value) << 20 | i;
    atomicAdd(&words[0], value);
    atomicSub(&words[1], value);
    atomicMin(&words[2], value);
    atomicMax(&words[3], value);
    atomicAnd(&words[4], value | 0xff);
    atomicOr(&words[5], value & 0xff0);
    atomicXor(&words[6], value);
    atomicInc(&words[7], 100);
    atomicDec(&words[8], 100);
    atomicMin(&numbers[0], static_cast<int>(value));
    atomicMax(&numbers[1], static_cast<int>(value));
    atomicAdd(&wide[0], both);
    atomicMax(&wide[1], both);
    atomicXor(&wide[2], both);
    if (i == 7)
        atomicExch(&wide[3], both);
    if (atomicCAS(&wide[4], 0ull, 1ull) == 0)
        atomicAdd_block(&wide[5], 1ull);
}
