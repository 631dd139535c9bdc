// The parts that CUDA C++ adds to C++, so that kernels/cuda/*.cu compile for the host.
//
// build.rs includes this file before each of them. The threads of a block are fibers of one thread:
// each runs up to a barrier or a shuffle, and then the next one runs (launch.cpp). A __shared__
// variable is a static of that thread; blocks run one after the other.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
using dim3 = uint3;

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};

struct alignas(16) longlong2 {
    long long x, y;
};

struct alignas(16) double2 {
    double x, y;
};

inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

inline longlong2 make_longlong2(long long x, long long y) {
    return {x, y};
}

inline double2 make_double2(double x, double y) {
    return {x, y};
}

inline float __int_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Computes both in f64, since libm has no such function. The error is about half a unit in the last
// place.
inline void sincospif(float x, float* sin, float* cos) {
    *sin = float(std::sin(M_PI * double(x)));
    *cos = float(std::cos(M_PI * double(x)));
}

// Waits until all threads of the block have arrived here. Aborts if one of them has returned.
void __syncthreads();

// Returns the `value` of the lane whose number differs by `mask`. All lanes of the warp call this.
std::uint64_t exchange_in_warp(std::uint64_t value, unsigned mask);

template <class T>
T __shfl_xor_sync(unsigned lanes, T value, unsigned mask) {
    static_assert(sizeof(T) <= 8);
    // Kernels shuffle only among whole warps.
    if (lanes != 0xffffffffu) {
        __builtin_trap();
    }
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = exchange_in_warp(bits, mask);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
