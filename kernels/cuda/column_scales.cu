// Means and standard deviations in f32, from accumulated moments.
//
// Moves 24 bytes per column. Bound by the launch, since matrices have few columns.
#include "threads.cuh"

KERNEL column_scales(u32 cols, u64 seen, const double* __restrict__ means, const double* __restrict__ squares,
                     float* __restrict__ mean, float* __restrict__ deviation) {
    const double count = double(seen > 0 ? seen : 1);
    for (u64 c = thread(); c < cols; c += threads()) {
        mean[c] = float(means[c]);
        const float root = float(sqrt(squares[c] / count));
        deviation[c] = root == 0.0f ? 1.0f : root;
    }
}
