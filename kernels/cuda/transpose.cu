// The transpose of a matrix, whose rows become columns.
//
// Moves 8 bytes per f32 element and 16 per i64 element. Bound by memory. A block moves a tile
// through shared memory, so that both the reads and the writes of a warp are contiguous. The column
// of padding spreads a column of the tile over the banks.
#include "threads.cuh"

constexpr u32 TILE = 32;

template <class T>
__device__ __forceinline__ void transposed(u64 rows, u64 cols, const T* __restrict__ x, T* __restrict__ y) {
    __shared__ T tile[TILE][TILE + 1];
    // If one of the sizes is 0, the other may be any number.
    if (rows == 0 || cols == 0) {
        return;
    }
    const u64 across = (cols - 1) / TILE + 1, tiles = across * ((rows - 1) / TILE + 1);
    for (u64 t = block(); t < tiles; t += blocks()) {
        const u64 top = t / across * TILE, left = t % across * TILE;
        for (u32 i = thread_in_block(); i < TILE * TILE; i += block_threads()) {
            const u64 r = top + i / TILE, c = left + i % TILE;
            if (r < rows && c < cols) {
                tile[i / TILE][i % TILE] = x[r * cols + c];
            }
        }
        __syncthreads();
        for (u32 i = thread_in_block(); i < TILE * TILE; i += block_threads()) {
            const u64 c = left + i / TILE, r = top + i % TILE;
            if (r < rows && c < cols) {
                y[c * rows + r] = tile[i % TILE][i / TILE];
            }
        }
        // The next tile overwrites this one.
        __syncthreads();
    }
}

KERNEL transpose(u64 rows, u64 cols, const float* x, float* y) {
    transposed(rows, cols, x, y);
}

KERNEL transpose_i64(u64 rows, u64 cols, const i64* x, i64* y) {
    transposed(rows, cols, x, y);
}
