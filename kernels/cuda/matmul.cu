// The product of two matrices.
//
// Moves 4·(m·k + k·n + m·n) bytes for 2·m·n·k operations: see gemm.cuh.
#include "gemm.cuh"

KERNEL_OF(GEMM_THREADS) matmul(u64 m, u64 n, u64 k, u32 a_transposed, u32 b_transposed, const float* __restrict__ a,
              const float* __restrict__ b, float* __restrict__ c) {
    gemm({a, m, k, a_transposed != 0}, {b, k, n, b_transposed != 0}, nullptr, c);
}
