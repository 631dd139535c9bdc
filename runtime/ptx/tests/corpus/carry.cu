// Computes a * b + c in 128 bits, once by 64-bit words and once by 32-bit words, with carries.
extern "C" __global__ void carry(const unsigned long long *a, const unsigned long long *b, const unsigned long long *c,
                                 unsigned long long *high, unsigned long long *low, unsigned *by_words, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long upper = __umul64hi(a[i], b[i]), lower = a[i] * b[i];
    asm("add.cc.u64 %0, %0, %2;\n\taddc.u64 %1, %1, 0;" : "+l"(lower), "+l"(upper) : "l"(c[i]));
    high[i] = upper;
    low[i] = lower;

    unsigned a0 = a[i], a1 = a[i] >> 32, b0 = b[i], b1 = b[i] >> 32, c0 = c[i], c1 = c[i] >> 32;
    unsigned r0, r1, r2, r3;
    asm("{\n\t"
        ".reg .u32 p0, p1, p2, p3;\n\t"
        "mad.lo.cc.u32   p0, %4, %6, %8;\n\t"
        "madc.hi.cc.u32  p1, %4, %6, %9;\n\t"
        "madc.hi.u32     p2, %5, %6, 0;\n\t"
        "mad.lo.cc.u32   p1, %5, %6, p1;\n\t"
        "addc.cc.u32     p2, p2, 0;\n\t"
        "addc.u32        p3, 0, 0;\n\t"
        "mad.lo.cc.u32   p1, %4, %7, p1;\n\t"
        "madc.hi.cc.u32  p2, %4, %7, p2;\n\t"
        "addc.u32        p3, p3, 0;\n\t"
        "mad.lo.cc.u32   p2, %5, %7, p2;\n\t"
        "madc.hi.u32     p3, %5, %7, p3;\n\t"
        "mov.u32         %0, p0;\n\t"
        "mov.u32         %1, p1;\n\t"
        "mov.u32         %2, p2;\n\t"
        "mov.u32         %3, p3;\n\t"
        "}"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
    by_words[4 * i + 0] = r0;
    by_words[4 * i + 1] = r1;
    by_words[4 * i + 2] = r2;
    by_words[4 * i + 3] = r3;
}
