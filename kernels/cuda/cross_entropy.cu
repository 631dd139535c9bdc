// The cross entropy of softmax(logits) with class labels, and its gradient. The formulas are in
// kernels/src/cross_entropy.rs.
//
// Reads 4 bytes per element from memory, and again twice from a cache. Reads 8 bytes per row and
// writes 4 bytes per element. A warp takes a row and computes the maximum, the sum of the
// exponentials and the gradient. `cross_entropy` uses one block, for a small batch; its other
// blocks do nothing. `cross_entropy_rows` writes the loss of each row to memory, and should be
// bound by memory from some thousand rows on. `cross_entropy_mean` computes the mean of these
// losses.
//
// exp is f32, within 2 units in the last place. Sums are f64: over lanes in halves, then over rows
// in the order of fold.cuh. So blocks of whole warps give the same bits, whatever their number and
// size.
#include "fold.cuh"
#include "warps.cuh"

// Returns the loss of one row, and writes its gradient times `weight`. All threads of the team call
// this and get the same loss.
__device__ __forceinline__ double row_loss(const Team& us, u64 cols, const float* __restrict__ logits, i64 label,
                                           float weight, float* __restrict__ grad) {
    // fmaxf ignores a NaN, which comes back through exp.
    float max = __int_as_float(0xff800000);
    for (u64 c = us.lane; c < cols; c += us.lanes) {
        max = fmaxf(max, logits[c]);
    }
    max = over_lanes(us, max, [](float a, float b) { return fmaxf(a, b); });
    double sum = 0.0;
    for (u64 c = us.lane; c < cols; c += us.lanes) {
        sum += double(expf(logits[c] - max));
    }
    sum = over_lanes(us, sum, [](double a, double b) { return a + b; });
    // As u64, a label below 0 is a large one.
    const bool known = u64(label) < cols;
    const float nan = __int_as_float(0x7fc00000);
    const float scale = float(double(weight) / sum);
    for (u64 c = us.lane; c < cols; c += us.lanes) {
        const float softmax = expf(logits[c] - max) * scale;
        grad[c] = known ? (c == u64(label) ? softmax - weight : softmax) : nan;
    }
    return known ? log(sum) - double(logits[label] - max) : double(nan);
}

// Writes the mean of the losses whose sums are in `lanes`. All threads of the block call this, and
// thread 0 writes.
__device__ __forceinline__ void write_mean(double* lanes, u64 rows, float* __restrict__ loss) {
    const double total = folded(lanes);
    if (thread_in_block() == 0) {
        loss[0] = float(total / double(rows));
    }
}

KERNEL cross_entropy(u64 rows, u64 cols, const float* __restrict__ logits, const i64* __restrict__ labels,
                     float* __restrict__ loss, float* __restrict__ grad) {
    __shared__ double lanes[LANES];
    if (block() != 0) {
        return;
    }
    const Team us = team();
    const float weight = 1.0f / float(rows);
    for (u32 l = thread_in_block() / us.lanes; l < LANES; l += block_threads() / us.lanes) {
        double sum = 0.0;
        for (u64 r = l; r < rows; r += LANES) {
            sum += row_loss(us, cols, logits + r * cols, labels[r], weight, grad + r * cols);
        }
        if (us.lane == 0) {
            lanes[l] = sum;
        }
    }
    write_mean(lanes, rows, loss);
}

KERNEL cross_entropy_rows(u64 rows, u64 cols, const float* __restrict__ logits, const i64* __restrict__ labels,
                          double* __restrict__ losses, float* __restrict__ grad) {
    const Team us = team();
    const float weight = 1.0f / float(rows);
    for (u64 r = thread() / us.lanes; r < rows; r += threads() / us.lanes) {
        const double loss = row_loss(us, cols, logits + r * cols, labels[r], weight, grad + r * cols);
        if (us.lane == 0) {
            losses[r] = loss;
        }
    }
}

KERNEL cross_entropy_mean(u64 rows, const double* __restrict__ losses, float* __restrict__ loss) {
    __shared__ double lanes[LANES];
    if (block() != 0) {
        return;
    }
    for (u32 l = thread_in_block(); l < LANES; l += block_threads()) {
        double sum = 0.0;
        for (u64 r = l; r < rows; r += LANES) {
            sum += losses[r];
        }
        lanes[l] = sum;
    }
    write_mean(lanes, rows, loss);
}
