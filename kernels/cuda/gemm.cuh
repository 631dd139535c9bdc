// C ← A·B, or bias + A·B, for any sizes and with either operand transposed, for `matmul` and
// `linear`.
//
// Each element of C is one chain of fused multiply-adds over k, from 0 up. So its bits depend
// neither on tiles nor on the launch.
//
// A block of 256 threads takes a square tile of C. It goes through A and B 16 steps of k at a time:
// these steps are in shared memory, while the next 16 are loaded into registers. A tile is 64 × 64,
// with 4 × 4 elements per thread. That makes 16 multiply-adds for two 16-byte loads from shared
// memory, so arithmetic is the bound. If C has too few such tiles for a device, a tile is 32 × 32,
// with 2 × 2 elements per thread.
//
// In smaller blocks each thread computes one element after the other, which is correct but slow.
// The driver refuses larger blocks at launch, so that a thread can have the registers it needs.
#pragma once
#include "threads.cuh"

// A dense matrix: row-major or, if `transposed`, stored as its row-major transpose.
struct Matrix {
    const float* at;
    u64 rows, cols;
    bool transposed;

    // Returns the element in row r and column c.
    __device__ __forceinline__ float operator()(u64 r, u64 c) const {
        return at[transposed ? c * rows + r : r * cols + c];
    }

    // Returns the element in row r and column c, or 0 outside the matrix.
    __device__ __forceinline__ float or_zero(u64 r, u64 c) const {
        return r < rows && c < cols ? (*this)(r, c) : 0.0f;
    }
};

constexpr u32 GEMM_THREADS = 256, GEMM_SIDE = 16, GEMM_DEPTH = 16;
// The least number of large tiles: if C has fewer, a block takes small tiles. kernels/src/launch.rs
// has the same number.
constexpr u64 MANY_TILES = 128;

// The position of an element in 16 steps of k of a tile with SIZE rows. Elements with consecutive
// numbers t are neighbours in memory within a row or column, so that the loads of a warp coalesce.
struct Spot {
    u32 row, step;
};

template <u32 SIZE>
__device__ __forceinline__ Spot spot(u32 t, bool rows_are_neighbours) {
    return rows_are_neighbours ? Spot{t % SIZE, t / SIZE} : Spot{t / GEMM_DEPTH, t % GEMM_DEPTH};
}

// Adds one step of k to a thread's EACH × EACH elements.
template <u32 SIZE, u32 EACH>
__device__ __forceinline__ void multiply_step(const float* a_step, const float* b_step, u32 y, u32 x,
                                              float (&sums)[EACH][EACH]) {
    float a[EACH], b[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        a[i] = a_step[y * EACH + i];
        b[i] = b_step[x * EACH + i];
    }
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
    }
}

template <u32 EACH>
__device__ __forceinline__ void gemm_by_tiles(const Matrix& a, const Matrix& b, const float* __restrict__ bias,
                                              float* __restrict__ c) {
    constexpr u32 SIZE = GEMM_SIDE * EACH;
    // The length of a row is a multiple of 16 bytes, for 16-byte loads. It is not a multiple of all
    // banks, so a column of the tile spans several banks.
    constexpr u32 PITCH = SIZE + 4;
    __shared__ __align__(16) float a_tile[2][GEMM_DEPTH][PITCH], b_tile[2][GEMM_DEPTH][PITCH];
    const u64 m = a.rows, n = b.cols, k = a.cols;
    const u32 t = thread_in_block(), x = t % GEMM_SIDE, y = t / GEMM_SIDE;
    const u64 across = (n - 1) / SIZE + 1, tiles = across * ((m - 1) / SIZE + 1);
    u32 now = 0;
    for (u64 tile = block(); tile < tiles; tile += blocks()) {
        const u64 top = tile / across * SIZE, left = tile % across * SIZE;
        float sums[EACH][EACH], next_a[EACH], next_b[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u64 col = left + x * EACH + j;
                sums[i][j] = bias != nullptr && col < n ? bias[col] : 0.0f;
            }
        }
        const auto fetch = [&](u64 step) {
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                const Spot in_a = spot<SIZE>(t + i * GEMM_THREADS, a.transposed);
                const Spot in_b = spot<SIZE>(t + i * GEMM_THREADS, !b.transposed);
                next_a[i] = a.or_zero(top + in_a.row, step + in_a.step);
                next_b[i] = b.or_zero(step + in_b.step, left + in_b.row);
            }
        };
        fetch(0);
        for (u64 step = 0; step < k; step += GEMM_DEPTH) {
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                const Spot in_a = spot<SIZE>(t + i * GEMM_THREADS, a.transposed);
                const Spot in_b = spot<SIZE>(t + i * GEMM_THREADS, !b.transposed);
                a_tile[now][in_a.step][in_a.row] = next_a[i];
                b_tile[now][in_b.step][in_b.row] = next_b[i];
            }
            // One barrier per round is enough: a thread that gets here has finished reading the
            // buffer that the next round fills.
            __syncthreads();
            const u64 left_of_k = k - step;
            if (left_of_k > GEMM_DEPTH) {
                fetch(step + GEMM_DEPTH);
            }
            if (left_of_k >= GEMM_DEPTH) {
#pragma unroll
                for (u32 l = 0; l < GEMM_DEPTH; ++l) {
                    multiply_step<SIZE, EACH>(a_tile[now][l], b_tile[now][l], y, x, sums);
                }
            } else {
                // Stops at the end of k. Adding the zeros behind it could change the bits: −0 + 0·0
                // is +0.
                for (u32 l = 0; l < u32(left_of_k); ++l) {
                    multiply_step<SIZE, EACH>(a_tile[now][l], b_tile[now][l], y, x, sums);
                }
            }
            now = 1 - now;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u64 row = top + y * EACH + i, col = left + x * EACH + j;
                if (row < m && col < n) {
                    c[row * n + col] = sums[i][j];
                }
            }
        }
    }
}

__device__ __forceinline__ void gemm_by_elements(const Matrix& a, const Matrix& b, const float* __restrict__ bias,
                                                 float* __restrict__ c) {
    for (u64 i = thread(); i < a.rows * b.cols; i += threads()) {
        const u64 row = i / b.cols, col = i % b.cols;
        float sum = bias != nullptr ? bias[col] : 0.0f;
        for (u64 l = 0; l < a.cols; ++l) {
            sum = fmaf(a(row, l), b(l, col), sum);
        }
        c[i] = sum;
    }
}

// Computes C ← A·B, or C ← bias + A·B if `bias` is not null. `bias` has one element for each column
// of C.
__device__ __forceinline__ void gemm(const Matrix& a, const Matrix& b, const float* __restrict__ bias,
                                     float* __restrict__ c) {
    // If one of the sizes is 0, the other may be any number.
    if (a.rows == 0 || b.cols == 0) {
        return;
    }
    if (block_threads() != GEMM_THREADS) {
        gemm_by_elements(a, b, bias, c);
    } else if (((a.rows - 1) / 64 + 1) * ((b.cols - 1) / 64 + 1) >= MANY_TILES) {
        gemm_by_tiles<4>(a, b, bias, c);
    } else {
        gemm_by_tiles<2>(a, b, bias, c);
    }
}
