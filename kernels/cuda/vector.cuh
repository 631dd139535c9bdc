// Elementwise loops over one, two or three arrays, in 16-byte accesses where the arrays allow them.
//
// A pack is 16 bytes: four f32, or two f64 or i64. Arrays are aligned only to their elements. So a
// loop over packs starts where all arrays are aligned to 16 bytes, and the elements before and
// after the packs are processed one by one. Some arrays are never aligned at the same element: one
// starts at byte 4 of a pack, another at byte 8. They are processed element by element throughout.
//
// One thread writes each element, and reads the operands of that element before it writes the
// result. So a result may be an operand, unless that operand is repeated. For this reason nothing
// here is __restrict__.
#pragma once
#include "threads.cuh"

template <class T>
struct Pack {
    static constexpr u32 LEN = 16 / sizeof(T);
    T at[LEN];
};

__device__ __forceinline__ Pack<float> load_pack(const float* x) {
    const float4 v = *reinterpret_cast<const float4*>(x);
    return {{v.x, v.y, v.z, v.w}};
}

__device__ __forceinline__ Pack<i64> load_pack(const i64* x) {
    const longlong2 v = *reinterpret_cast<const longlong2*>(x);
    return {{v.x, v.y}};
}

__device__ __forceinline__ Pack<double> load_pack(const double* x) {
    const double2 v = *reinterpret_cast<const double2*>(x);
    return {{v.x, v.y}};
}

__device__ __forceinline__ void store_pack(float* y, const Pack<float>& v) {
    *reinterpret_cast<float4*>(y) = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
}

__device__ __forceinline__ void store_pack(i64* y, const Pack<i64>& v) {
    *reinterpret_cast<longlong2*>(y) = make_longlong2(v.at[0], v.at[1]);
}

__device__ __forceinline__ void store_pack(double* y, const Pack<double>& v) {
    *reinterpret_cast<double2*>(y) = make_double2(v.at[0], v.at[1]);
}

// `n` elements, split into packs and the elements around them.
struct Split {
    u64 head;     // elements before the first pack
    u64 packs;
    u64 edges;    // elements that are in no pack
    u64 in_packs; // elements that are in packs

    // Returns the index of the e-th element that is in no pack.
    __device__ __forceinline__ u64 edge(u64 e) const {
        return e < head ? e : e + in_packs;
    }
};

// Splits arrays of `n` elements that start at these addresses, for a loop over all of them.
template <class T>
__device__ __forceinline__ Split split(u64 n, const T* x, const T* y, const T* z) {
    const u64 at = reinterpret_cast<u64>(x);
    const u64 apart = (at ^ reinterpret_cast<u64>(y)) | (at ^ reinterpret_cast<u64>(z));
    u64 head = (0 - at) % 16 / sizeof(T);
    if (apart % 16 != 0 || head > n) {
        head = n;
    }
    const u64 packs = (n - head) / Pack<T>::LEN;
    return {head, packs, n - packs * Pack<T>::LEN, packs * Pack<T>::LEN};
}

// Calls pack(i) with the index of the first element of each pack, and edge(i) with the index of
// each element that is in no pack. The threads of the launch share these calls.
template <class T, class P, class E>
__device__ __forceinline__ void each(const Split& split, P pack, E edge) {
    for (u64 p = thread(); p < split.packs; p += threads()) {
        pack(split.head + p * Pack<T>::LEN);
    }
    for (u64 e = thread(); e < split.edges; e += threads()) {
        edge(split.edge(e));
    }
}

// Computes y[i] = f(x[i]).
template <class T, class F>
__device__ __forceinline__ void map(u64 n, const T* x, T* y, F f) {
    each<T>(
        split<T>(n, x, y, y),
        [=](u64 i) {
            Pack<T> v = load_pack(x + i);
#pragma unroll
            for (u32 k = 0; k < Pack<T>::LEN; ++k) {
                v.at[k] = f(v.at[k]);
            }
            store_pack(y + i, v);
        },
        [=](u64 i) { y[i] = f(x[i]); });
}

// Computes z[i] = f(x[i], y[i]).
template <class T, class F>
__device__ __forceinline__ void zip(u64 n, const T* x, const T* y, T* z, F f) {
    each<T>(
        split<T>(n, x, y, z),
        [=](u64 i) {
            Pack<T> v = load_pack(x + i);
            const Pack<T> w = load_pack(y + i);
#pragma unroll
            for (u32 k = 0; k < Pack<T>::LEN; ++k) {
                v.at[k] = f(v.at[k], w.at[k]);
            }
            store_pack(z + i, v);
        },
        [=](u64 i) { z[i] = f(x[i], y[i]); });
}

// Returns a mod b. A 64-bit division takes about four times as long as a 32-bit one.
__device__ __forceinline__ u64 remainder_of(u64 a, u64 b) {
    return (a | b) >> 32 == 0 ? u32(a) % u32(b) : a % b;
}

// Returns a div b.
__device__ __forceinline__ u64 quotient_of(u64 a, u64 b) {
    return (a | b) >> 32 == 0 ? u32(a) / u32(b) : a / b;
}

// Computes z[i] = f(x[i], i mod period), for operands that are repeated along `x`. `period` is not
// 0.
template <class T, class F>
__device__ __forceinline__ void map_columns(u64 n, u64 period, const T* x, T* z, F f) {
    const Split s = split<T>(n, x, z, z);
    const u64 first = thread();
    if (first < s.packs) {
        // The column advances by the same step from each pack of a thread to its next, so the loop
        // needs no division.
        u64 column = remainder_of(s.head + first * Pack<T>::LEN, period);
        const u64 step = remainder_of(threads() * Pack<T>::LEN, period);
        for (u64 p = first; p < s.packs; p += threads()) {
            const u64 i = s.head + p * Pack<T>::LEN;
            Pack<T> v = load_pack(x + i);
            u64 c = column;
#pragma unroll
            for (u32 k = 0; k < Pack<T>::LEN; ++k) {
                v.at[k] = f(v.at[k], c);
                c = c + 1 == period ? 0 : c + 1;
            }
            store_pack(z + i, v);
            column += step;
            column = column >= period ? column - period : column;
        }
    }
    for (u64 e = first; e < s.edges; e += threads()) {
        const u64 i = s.edge(e);
        z[i] = f(x[i], remainder_of(i, period));
    }
}

// Computes z[i] = f(x[i], y[i mod period]). `y` has `period` elements.
template <class T, class F>
__device__ __forceinline__ void zip_repeated(u64 n, u64 period, const T* x, const T* y, T* z, F f) {
    if (period == n) {
        zip(n, x, y, z, f);
    } else if (n > 0) {
        map_columns(n, period, x, z, [=](T v, u64 c) { return f(v, y[c]); });
    }
}
