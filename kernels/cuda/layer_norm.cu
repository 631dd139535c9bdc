// Rows with mean 0 and variance 1, times a weight plus a bias per column. The formula is in
// kernels/src/layer_norm.rs.
//
// Reads 4 bytes per element from memory, and again twice from a cache. Writes 4 bytes per element.
// A warp takes a row. Bound by memory from some thousand rows on, and by f64 arithmetic on devices
// with few units for it.
//
// Sums are f64: over the lanes of a team in halves.
#include "warps.cuh"

KERNEL layer_norm(u64 rows, u64 cols, float eps, const float* __restrict__ x, const float* __restrict__ weight,
                  const float* __restrict__ bias, float* __restrict__ y) {
    const Team us = team();
    const u64 teams = threads() / us.lanes;
    const auto add = [](double a, double b) { return a + b; };
    // Without columns there is nothing to write, and `rows` may be any number.
    for (u64 r = thread() / us.lanes; cols > 0 && r < rows; r += teams) {
        const float* row = x + r * cols;
        double sum = 0.0;
        for (u64 c = us.lane; c < cols; c += us.lanes) {
            sum += double(row[c]);
        }
        const double mean = over_lanes(us, sum, add) / double(cols);
        double squares = 0.0;
        for (u64 c = us.lane; c < cols; c += us.lanes) {
            const double deviation = double(row[c]) - mean;
            squares += deviation * deviation;
        }
        const double scale = 1.0 / sqrt(over_lanes(us, squares, add) / double(cols) + double(eps));
        for (u64 c = us.lane; c < cols; c += us.lanes) {
            y[r * cols + c] = float((double(row[c]) - mean) * scale) * weight[c] + bias[c];
        }
    }
}
