// y[o, r, i] ← x[o, i], with `repeat` values of r and `inner` of i.
//
// Writes each element once, and reads a repeated element from a cache after the first time. Bound
// by memory, unless the elements are small: each needs two divisions.
#include "vector.cuh"

template <class T>
__device__ __forceinline__ void expanded(u64 n, u64 repeat, u64 inner, const T* x, T* y) {
    for (u64 at = thread(); at < n; at += threads()) {
        const u64 i = remainder_of(at, inner);
        const u64 o = quotient_of(at, repeat * inner);
        y[at] = x[o * inner + i];
    }
}

KERNEL expand_1(u64 n, u64 repeat, u64 inner, const unsigned char* x, unsigned char* y) {
    expanded(n, repeat, inner, x, y);
}

KERNEL expand_2(u64 n, u64 repeat, u64 inner, const unsigned short* x, unsigned short* y) {
    expanded(n, repeat, inner, x, y);
}

KERNEL expand_4(u64 n, u64 repeat, u64 inner, const u32* x, u32* y) {
    expanded(n, repeat, inner, x, y);
}

KERNEL expand_8(u64 n, u64 repeat, u64 inner, const u64* x, u64* y) {
    expanded(n, repeat, inner, x, y);
}
