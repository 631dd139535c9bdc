// A fully connected layer: x·wᵀ + bias. Each sum starts with the bias.
//
// Moves 4·(m·k + k·n + n + m·n) bytes for 2·m·n·k operations: see gemm.cuh.
#include "gemm.cuh"

KERNEL_OF(GEMM_THREADS) linear(u64 m, u64 n, u64 k, u32 w_transposed, const float* __restrict__ x, const float* __restrict__ w,
              const float* __restrict__ bias, float* __restrict__ y) {
    gemm({x, m, k, false}, {w, k, n, w_transposed == 0}, bias, y);
}
