// y[i] ← x[i] converted, between the types of two codes (see cast.rs, which has the rules).
//
// Reads and writes each element once. Bound by memory. The types are the same for all threads, so
// the branches on them do not diverge.
#include "threads.cuh"

enum Type : u32 { F32, F64, F16, BF16, I64, I32, I16, I8, U8, BOOL };

// Any value, exactly: an integer, or else a floating-point number.
struct Value {
    bool is_integer;
    i64 integer;
    double number;
};

__device__ __forceinline__ Value integer(i64 value) {
    return {true, value, 0.0};
}

__device__ __forceinline__ Value number(double value) {
    return {false, 0, value};
}

// Reads an element. The bytes need not be aligned to it.
template <class T>
__device__ __forceinline__ T load(const unsigned char* x, u64 i) {
    const unsigned char* at = x + i * sizeof(T);
    if (reinterpret_cast<u64>(at) % sizeof(T) == 0) {
        return *reinterpret_cast<const T*>(at);
    }
    T value;
    memcpy(&value, at, sizeof(T));
    return value;
}

template <class T>
__device__ __forceinline__ void store(unsigned char* y, u64 i, T value) {
    unsigned char* at = y + i * sizeof(T);
    if (reinterpret_cast<u64>(at) % sizeof(T) == 0) {
        *reinterpret_cast<T*>(at) = value;
    } else {
        memcpy(at, &value, sizeof(T));
    }
}

__device__ __forceinline__ float float_of_bits(u32 bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

__device__ __forceinline__ u32 bits_of_float(float value) {
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Returns the value of an f16 (IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits).
__device__ __forceinline__ float float_of_f16(unsigned short half) {
    const u32 sign = u32(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
    if (exponent == 0) {
        // Zero or subnormal: fraction · 2⁻²⁴, which is exact.
        const float value = float(fraction) * 5.9604644775390625e-8f;
        return float_of_bits(sign | bits_of_float(value));
    }
    // The biases are 15 and 127. The largest exponent, of infinities and NaN, stays the largest.
    const u32 biased = exponent == 31 ? 255 : exponent + 112;
    return float_of_bits(sign | biased << 23 | fraction << 13);
}

// Returns the f16 nearest to `value`, which is not NaN, ties to even.
__device__ __forceinline__ unsigned short f16_of_float(float value) {
    const u32 bits = bits_of_float(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x477ff000) {
        return sign | 0x7c00; // 65520 and more
    }
    if (size >= 0x38800000) {
        // 2⁻¹⁴ and more, the normal numbers. A carry out of the fraction increases the exponent.
        const u32 rebiased = size - (112u << 23);
        return sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13;
    }
    if (size < 0x33000000) {
        return sign; // less than 2⁻²⁵, half of the smallest number
    }
    // A subnormal: a whole number of 2⁻²⁴.
    const u32 shift = 126 - (size >> 23), fraction = (size & 0x7fffff) | 0x800000;
    const u32 whole = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    return sign | (whole + (rest > middle || (rest == middle && (whole & 1))));
}

// Returns the bf16 nearest to `value`, which is not NaN, ties to even: the upper half of its bits.
__device__ __forceinline__ unsigned short bf16_of_float(float value) {
    const u32 bits = bits_of_float(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Returns the integer nearest to zero from `value`, within the range, and 0 for NaN.
__device__ __forceinline__ i64 truncated(double value, i64 low, i64 high) {
    if (value != value) {
        return 0;
    }
    if (value <= double(low)) {
        return low;
    }
    // The largest i64 is not a double: `double(high)` is one more, and the cast below overflows
    // from there on.
    return value >= double(high) ? high : i64(value);
}

__device__ __forceinline__ Value loaded(u32 type, const unsigned char* x, u64 i) {
    switch (type) {
    case F32:
        return number(load<float>(x, i));
    case F64:
        return number(load<double>(x, i));
    case F16:
        return number(float_of_f16(load<unsigned short>(x, i)));
    case BF16:
        return number(float_of_bits(u32(load<unsigned short>(x, i)) << 16));
    case I64:
        return integer(load<i64>(x, i));
    case I32:
        return integer(load<int>(x, i));
    case I16:
        return integer(load<short>(x, i));
    case I8:
        return integer(load<signed char>(x, i));
    case U8:
        return integer(load<unsigned char>(x, i));
    default:
        return integer(load<unsigned char>(x, i) != 0);
    }
}

// Writes an integer of type T, whose values go from `low` to `high`.
template <class T>
__device__ __forceinline__ void store_integer(unsigned char* y, u64 i, Value v, i64 low, i64 high) {
    store(y, i, T(v.is_integer ? v.integer : truncated(v.number, low, high)));
}

__device__ __forceinline__ float as_float(Value v) {
    return v.is_integer ? float(v.integer) : float(v.number);
}

// Writes the positive quiet NaN without a payload. A conversion by an instruction would leave the
// payload to the processor.
__device__ __forceinline__ void store_nan(u32 type, unsigned char* y, u64 i) {
    switch (type) {
    case F32:
        return store<u32>(y, i, 0x7fc00000);
    case F64:
        return store<u64>(y, i, 0x7ff8000000000000);
    case F16:
        return store<unsigned short>(y, i, 0x7e00);
    default:
        return store<unsigned short>(y, i, 0x7fc0);
    }
}

__device__ __forceinline__ void stored(u32 type, unsigned char* y, u64 i, Value v) {
    if (type <= BF16 && !v.is_integer && v.number != v.number) {
        return store_nan(type, y, i);
    }
    switch (type) {
    case F32:
        return store(y, i, as_float(v));
    case F64:
        return store(y, i, v.is_integer ? double(v.integer) : v.number);
    case F16:
        return store(y, i, f16_of_float(as_float(v)));
    case BF16:
        return store(y, i, bf16_of_float(as_float(v)));
    case I64:
        return store_integer<i64>(y, i, v, -0x7fffffffffffffff - 1, 0x7fffffffffffffff);
    case I32:
        return store_integer<int>(y, i, v, -0x80000000ll, 0x7fffffff);
    case I16:
        return store_integer<short>(y, i, v, -0x8000, 0x7fff);
    case I8:
        return store_integer<signed char>(y, i, v, -0x80, 0x7f);
    case U8:
        return store_integer<unsigned char>(y, i, v, 0, 0xff);
    default:
        return store<unsigned char>(y, i, v.is_integer ? v.integer != 0 : v.number != 0.0);
    }
}

KERNEL cast(u64 n, u32 from, u32 to, const unsigned char* x, unsigned char* y) {
    for (u64 i = thread(); i < n; i += threads()) {
        stored(to, y, i, loaded(from, x, i));
    }
}
