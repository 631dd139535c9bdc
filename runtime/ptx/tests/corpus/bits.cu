// Applies one function of the bits of two words in each row of the result.
extern "C" __global__ void bits(const unsigned *x, const unsigned *y, unsigned *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned a = x[i], b = y[i], field, inserted, logic, dots, signed_dots;
    unsigned long long both = static_cast<unsigned long long>(a) << 32 | b;
    asm("bfe.u32 %0, %1, 5, 9;" : "=r"(field) : "r"(a));
    asm("bfi.b32 %0, %1, %2, 7, 12;" : "=r"(inserted) : "r"(a), "r"(b));
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(logic) : "r"(a), "r"(b), "r"(a + b));
    asm("dp4a.u32.u32 %0, %1, %2, 1000;" : "=r"(dots) : "r"(a), "r"(b));
    asm("dp4a.s32.u32 %0, %1, %2, -1000;" : "=r"(signed_dots) : "r"(a), "r"(b));
    out[0 * n + i] = __popc(a) + __popcll(both);
    out[1 * n + i] = __clz(a >> (b & 31)) + __clzll(both >> (a & 31));
    out[2 * n + i] = __ffs(a << (b & 31)) + __ffsll(both << (b & 31));
    out[3 * n + i] = __brev(a) ^ static_cast<unsigned>(__brevll(both) >> 16);
    out[4 * n + i] = __funnelshift_l(a, b, a & 63);
    out[5 * n + i] = __funnelshift_rc(a, b, b & 63);
    out[6 * n + i] = __byte_perm(a, b, 0x5207 + (a & 0x88));
    out[7 * n + i] = dots;
    out[8 * n + i] = signed_dots;
    out[9 * n + i] = __umulhi(a, b) + __mulhi(static_cast<int>(a), static_cast<int>(b));
    out[10 * n + i] = field + inserted + logic;
    out[11 * n + i] = min(max(static_cast<int>(a), -1000), static_cast<int>(b)) + __sad(a, b, i);
}
