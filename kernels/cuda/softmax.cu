// The softmax of each line. The formula is in kernels/src/softmax.rs.
//
// Reads 4 bytes per element from memory, and again twice from a cache if a line fits there. Writes
// 4 bytes per element. Bound by memory from some thousand lines on. A few long lines keep few warps
// busy.
//
// exp is f32, within 2 units in the last place. Sums are f64: over the lanes of a team in halves.
#include "lines.cuh"

KERNEL softmax(u64 outer, u64 n, u64 inner, const float* __restrict__ x, float* __restrict__ y) {
    if (n == 0) {
        return;
    }
    each_line(outer, n, inner, [=](const Team& us, u64, u64 first) {
        // fmaxf ignores a NaN, which comes back through exp.
        float max = __int_as_float(0xff800000);
        for (u64 k = us.lane; k < n; k += us.lanes) {
            max = fmaxf(max, x[first + k * inner]);
        }
        max = over_lanes(us, max, [](float a, float b) { return fmaxf(a, b); });
        double sum = 0.0;
        for (u64 k = us.lane; k < n; k += us.lanes) {
            sum += double(expf(x[first + k * inner] - max));
        }
        const float total = float(over_lanes(us, sum, [](double a, double b) { return a + b; }));
        for (u64 k = us.lane; k < n; k += us.lanes) {
            y[first + k * inner] = expf(x[first + k * inner] - max) / total;
        }
    });
}
