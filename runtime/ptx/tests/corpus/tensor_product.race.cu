// Multiplies a 16 by 16 matrix by a 16 by 16 matrix, whose columns are given one after the other,
// with tensor cores. Each warp computes 8 columns of the result.
// Fault: does not wait until all threads have stored their elements.
// Compiled for sm_80.
__device__ unsigned short half_of(float x)
{
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

extern "C" __global__ void tensor_product(const float *a, const float *b, float *c)
{
    __shared__ unsigned short rows[16][16], columns[16][16];
    for (unsigned i = threadIdx.x; i < 256; i += 64) {
        rows[i / 16][i % 16] = half_of(a[i]); // fault
        columns[i / 16][i % 16] = half_of(b[i]); // fault
    }
    unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8, group = lane / 4, two = lane % 4 * 2;
    unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&rows[lane % 16][lane / 16 * 8]));
    unsigned a0, a1, a2, a3;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" // fault
                 : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                 : "r"(place)
                 : "memory");
    unsigned b0 = *reinterpret_cast<unsigned *>(&columns[first + group][two]); // fault
    unsigned b1 = *reinterpret_cast<unsigned *>(&columns[first + group][two + 8]); // fault
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    float *to = &c[group * 16 + first + two];
    to[0] = d0;
    to[1] = d1;
    to[128] = d2;
    to[129] = d3;
}
