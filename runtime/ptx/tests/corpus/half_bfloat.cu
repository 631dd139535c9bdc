// Computes x * y + x in half precision, alone and in pairs, and rounds x to bfloat16 by its bits.
static __device__ unsigned short half_of(float x)
{
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

static __device__ unsigned short bfloat_of(float x)
{
    unsigned bits = __float_as_uint(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

extern "C" __global__ void half_bfloat(const float *x, const float *y, unsigned short *alone, unsigned *pairs, float *back,
                                       unsigned short *bfloat, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned short a = half_of(x[i]), b = half_of(y[i]), sum;
    asm("fma.rn.f16 %0, %1, %2, %1;" : "=h"(sum) : "h"(a), "h"(b));
    alone[i] = sum;
    unsigned left, right, product;
    asm("mov.b32 %0, {%1, %2};" : "=r"(left) : "h"(a), "h"(b));
    asm("mov.b32 %0, {%1, %2};" : "=r"(right) : "h"(b), "h"(sum));
    asm("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(product) : "r"(left), "r"(right));
    pairs[i] = product;
    asm("cvt.f32.f16 %0, %1;" : "=f"(back[i]) : "h"(a));
    bfloat[i] = bfloat_of(x[i]);
}
