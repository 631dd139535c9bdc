// Applies a list of operations to each element; a jump table selects the operation.
extern "C" __global__ void switch_table(const unsigned *operations, unsigned steps, const unsigned *x, unsigned *y, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned value = x[i];
    for (unsigned step = 0; step < steps; step++) {
        // The compiler makes comparisons of a switch, so the jump table is written out.
        unsigned operation = min(operations[i * steps + step], 5u);
        asm volatile("{\n\t"
                     ".reg .u32 high;\n\t"
                     "targets: .branchtargets add, multiply, shift, reverse, divide, invert;\n\t"
                     "brx.idx %1, targets;\n\t"
                     "add: add.u32 %0, %0, %2; bra.uni done;\n\t"
                     "multiply: mul.lo.u32 %0, %0, 0x9e3779b1; bra.uni done;\n\t"
                     "shift: shr.u32 high, %0, 15; xor.b32 %0, %0, high; bra.uni done;\n\t"
                     "reverse: brev.b32 %0, %0; bra.uni done;\n\t"
                     "divide: div.u32 %0, %0, 7; bra.uni done;\n\t"
                     "invert: not.b32 %0, %0;\n\t"
                     "done:\n\t"
                     "}"
                     : "+r"(value)
                     : "r"(operation), "r"(i));
    }
    y[i] = value;
}
