// C ← A·B, or bias + A·B, for any sizes and with either operand transposed, for `matmul` and
// `linear`.
//
// Each element of C is one chain of fused multiply-adds over k, from 0 up. So its bits depend
// neither on tiles nor on the launch.
//
// A block of 256 threads takes a square tile of C. It goes through A and B in rounds of several
// steps of k: the steps of a round are in shared memory, while those of the next one are loaded
// into registers. A tile is 64 × 64, with 4 × 4 elements per thread and 16 steps per round. Four
// steps take eight 16-byte loads from shared memory for 64 multiply-adds, so arithmetic is the
// bound. If C has too few such tiles for a device, a tile is 32 × 32, with 2 × 2 elements per
// thread and 32 steps per round. In both, a thread takes 4 elements of A and 4 of B to shared
// memory per round.
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
};

constexpr u32 GEMM_THREADS = 256, GEMM_SIDE = 16;
// The least number of large tiles: if C has fewer, a block takes small tiles. kernels/src/launch.rs
// has the same number.
constexpr u64 MANY_TILES = 128;

// Returns the place `bytes` behind an element.
__device__ __forceinline__ const float* behind(const float* element, u64 bytes) {
    return reinterpret_cast<const float*>(reinterpret_cast<const char*>(element) + bytes);
}

__device__ __forceinline__ float* behind(float* element, u64 bytes) {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(element) + bytes);
}

// Returns `value`, but hides from NVRTC how it was computed. Otherwise NVRTC would compute it
// again in each round instead of keeping it.
__device__ __forceinline__ u64 kept(u64 value) {
#ifdef __CUDA_ARCH__
    asm("" : "+l"(value));
#endif
    return value;
}

// The sizes of tiles, for EACH × EACH elements of C per thread.
template <u32 EACH>
struct Tiles {
    // The rows and columns of a tile of C, and the steps of k of a round.
    static constexpr u32 SIZE = GEMM_SIDE * EACH, DEPTH = 64 / EACH;
    // In the tile of A, the steps of a row are next to each other. In the tile of B, the columns
    // of a step are. The distances between rows and between steps are multiples of 16 bytes, for
    // 16-byte loads. A column of a tile is spread over 8 banks, which is the most that such
    // distances allow. Only operands that are transposed are stored by columns.
    static constexpr u32 A_PITCH = DEPTH + 4, B_PITCH = SIZE + 4;
    static constexpr u32 A_LEN = SIZE * A_PITCH, LEN = A_LEN + DEPTH * B_PITCH;
};

// The elements that a thread takes from one operand to shared memory: 4 in each round. The operand
// has `lines` of k elements: rows of A, or columns of B.
template <class TILES>
struct Share {
    static constexpr u32 LEN = 4;

    const float* operand;
    u64 lines;
    u64 per_line, per_step;     // elements from a line to the next, and from a step to the next
    u32 line, step;             // the place of the thread's first element in the tile
    u32 more_lines, more_steps; // from each of its elements to the next
    // Bytes, computed once, so that a round mostly adds.
    u64 next_in_memory; // from each element to the next
    u64 next_round;     // from the first element of a round to that of the next
    u64 first_in_tile;  // the offset of the first element
    u64 next_in_tile;   // from each element to the next
    const float* first; // the first element of the next round
    u32 tile_lines;     // the lines of the tile that exist

    // If `lines_are_rows`, a line is a row in memory, otherwise a column. Neighbouring threads
    // take neighbouring elements, so that the loads of a warp coalesce.
    __device__ __forceinline__ Share(const float* operand, u64 lines, u64 k, bool lines_are_rows, u32 tile_per_line,
                                     u32 tile_per_step)
        : operand(operand), lines(lines) {
        const u32 t = thread_in_block();
        per_line = lines_are_rows ? k : 1;
        per_step = lines_are_rows ? 1 : lines;
        line = lines_are_rows ? t / TILES::DEPTH : t % TILES::SIZE;
        step = lines_are_rows ? t % TILES::DEPTH : t / TILES::SIZE;
        more_lines = lines_are_rows ? GEMM_THREADS / TILES::DEPTH : 0;
        more_steps = lines_are_rows ? 0 : GEMM_THREADS / TILES::SIZE;
        next_in_memory = kept(sizeof(float) * (more_lines * per_line + more_steps * per_step));
        next_round = kept(sizeof(float) * TILES::DEPTH * per_step);
        first_in_tile = kept(sizeof(float) * (line * tile_per_line + step * tile_per_step));
        next_in_tile = kept(sizeof(float) * (more_lines * tile_per_line + more_steps * tile_per_step));
    }

    // Goes to the tile of the lines from `from` on.
    __device__ __forceinline__ void start(u64 from) {
        first = operand + (from + line) * per_line + step * per_step;
        tile_lines = u32(lines - from < TILES::SIZE ? lines - from : TILES::SIZE);
    }

    // Loads the elements of the next round, before which `steps` steps of k are left. Those that
    // do not exist are 0, unless `all_exist`.
    __device__ __forceinline__ void load(bool all_exist, u64 steps, float (&elements)[LEN]) {
        const float* at = first;
#pragma unroll
        for (u32 i = 0; i < LEN; ++i) {
            const bool exists = all_exist || (line + i * more_lines < tile_lines && step + i * more_steps < steps);
            elements[i] = exists ? *at : 0.0f;
            at = behind(at, next_in_memory);
        }
        first = behind(first, next_round);
    }

    __device__ __forceinline__ void store(const float (&elements)[LEN], float* tile) const {
        float* at = behind(tile, first_in_tile);
#pragma unroll
        for (u32 i = 0; i < LEN; ++i) {
            *at = elements[i];
            at = behind(at, next_in_tile);
        }
    }
};

// A thread's elements of C: EACH × EACH neighbours.
template <u32 EACH>
struct Sums {
    using T = Tiles<EACH>;

    float of[EACH][EACH];

    // Adds STEPS steps of k, from the thread's first row of A and its first column of B.
    template <u32 STEPS>
    __device__ __forceinline__ void add(const float* a_rows, const float* b_cols) {
        float a[EACH][STEPS];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 l = 0; l < STEPS; ++l) {
                a[i][l] = a_rows[i * T::A_PITCH + l];
            }
        }
#pragma unroll
        for (u32 l = 0; l < STEPS; ++l) {
            float b[EACH];
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                b[j] = b_cols[l * T::B_PITCH + j];
            }
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
                for (u32 j = 0; j < EACH; ++j) {
                    of[i][j] = fmaf(a[i][l], b[j], of[i][j]);
                }
            }
        }
    }
};

// `shared` has the tiles of two rounds, one behind the other.
template <u32 EACH>
__device__ __forceinline__ void gemm_by_tiles(const Matrix& a, const Matrix& b, const float* __restrict__ bias,
                                              float* __restrict__ c, float* shared) {
    using T = Tiles<EACH>;
    constexpr u32 SIZE = T::SIZE, DEPTH = T::DEPTH;
    const u64 m = a.rows, n = b.cols, k = a.cols;
    const u32 t = thread_in_block(), x = t % GEMM_SIDE * EACH, y = t / GEMM_SIDE * EACH;
    const u64 across = (n - 1) / SIZE + 1, tiles = across * ((m - 1) / SIZE + 1);
    Share<T> of_a(a.at, m, k, !a.transposed, T::A_PITCH, 1);
    Share<T> of_b(b.at, n, k, b.transposed, 1, T::B_PITCH);
    u32 now = 0;
    for (u64 tile = block(); tile < tiles; tile += blocks()) {
        const u64 top = tile / across * SIZE, left = tile % across * SIZE;
        Sums<EACH> sums;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u64 col = left + x + j;
                sums.of[i][j] = bias != nullptr && col < n ? bias[col] : 0.0f;
            }
        }
        of_a.start(top);
        of_b.start(left);
        // In rounds before this step, all elements exist.
        const u64 whole = of_a.tile_lines == SIZE && of_b.tile_lines == SIZE ? k / DEPTH * DEPTH : 0;
        float next_a[Share<T>::LEN], next_b[Share<T>::LEN];
        of_a.load(whole > 0, k, next_a);
        of_b.load(whole > 0, k, next_b);
        for (u64 step = 0; step < k; step += DEPTH) {
            float *a_tile = shared + now * T::LEN, *b_tile = a_tile + T::A_LEN;
            of_a.store(next_a, a_tile);
            of_b.store(next_b, b_tile);
            // One barrier per round is enough: a thread that gets here has finished reading the
            // tiles that the next round fills.
            __syncthreads();
            const u64 next = step + DEPTH;
            if (next < k) {
                of_a.load(next < whole, k - next, next_a);
                of_b.load(next < whole, k - next, next_b);
            }
            const float *a_rows = a_tile + y * T::A_PITCH, *b_cols = b_tile + x;
            if (next <= k) {
#pragma unroll
                for (u32 l = 0; l < DEPTH; l += 4) {
                    sums.template add<4>(a_rows + l, b_cols + l * T::B_PITCH);
                }
            } else {
                // Stops at the end of k. Adding the zeros behind it could change the bits: −0 + 0·0
                // is +0.
                for (u32 l = 0; l < u32(k - step); ++l) {
                    sums.template add<1>(a_rows + l, b_cols + l * T::B_PITCH);
                }
            }
            now = 1 - now;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u64 row = top + y + i, col = left + x + j;
                if (row < m && col < n) {
                    c[row * n + col] = sums.of[i][j];
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
    using Large = Tiles<4>;
    using Small = Tiles<2>;
    __shared__ __align__(16) float shared[2 * (Large::LEN > Small::LEN ? Large::LEN : Small::LEN)];
    if (block_threads() != GEMM_THREADS) {
        gemm_by_elements(a, b, bias, c);
    } else if (((a.rows - 1) / Large::SIZE + 1) * ((b.cols - 1) / Large::SIZE + 1) >= MANY_TILES) {
        gemm_by_tiles<4>(a, b, bias, c, shared);
    } else {
        gemm_by_tiles<2>(a, b, bias, c, shared);
    }
}
