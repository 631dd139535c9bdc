// Means and standard deviations in f32, from accumulated moments.
//
// Moves 32 bytes per column. Bound by the launch, since matrices have few columns.
#include "threads.cuh"

KERNEL column_scales(u64 cols, const u64* __restrict__ seen, const double* __restrict__ means,
                     const double* __restrict__ squares, float* __restrict__ mean, float* __restrict__ deviation) {
    for (u64 c = thread(); c < cols; c += threads()) {
        const double count = double(seen[c] > 0 ? seen[c] : 1);
        mean[c] = float(means[c]);
        const float root = float(sqrt(squares[c] / count));
        deviation[c] = root == 0.0f ? 1.0f : root;
    }
}
