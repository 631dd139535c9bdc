// Hands values from even to odd blocks by a release store and an acquire load, and counts them by
// an atomic add that does both. A store with a fence resets each flag.
// Fault: a relaxed store of the flag where a release is needed.
extern "C" __global__ void release_acquire(const unsigned *x, unsigned *messages, unsigned *flags, unsigned *y, unsigned *handed)
{
    unsigned pair = blockIdx.x / 2 * blockDim.x + threadIdx.x, seen;
    if (blockIdx.x % 2 == 0) {
        messages[pair] = x[pair] ^ 0x5a5a5a5a; // fault
        asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(&flags[pair])) : "memory");
    } else {
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(__cvta_generic_to_global(&flags[pair])) : "memory");
        while (seen == 0);
        y[pair] = messages[pair]; // fault
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(seen) : "l"(__cvta_generic_to_global(handed)) : "memory");
        asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(handed + 1)) : "memory");
        asm volatile("fence.acq_rel.gpu;\n\tst.relaxed.gpu.global.u32 [%0], 2;" ::"l"(__cvta_generic_to_global(&flags[pair])) : "memory");
        asm volatile("fence.sc.gpu;" ::: "memory");
    }
}
