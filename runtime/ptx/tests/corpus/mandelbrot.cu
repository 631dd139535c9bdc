// Counts the iterations until a point leaves the circle of radius two. The intrinsics keep each
// operation apart, so the counts do not depend on contraction.
extern "C" __global__ void mandelbrot(unsigned *counts, unsigned width, unsigned height, unsigned limit)
{
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height)
        return;
    float real = __fadd_rn(__fmul_rn(column, 0.0625f), -2.0f), imaginary = __fadd_rn(__fmul_rn(row, 0.125f), -1.0f);
    float x = 0.0f, y = 0.0f;
    unsigned count = 0;
    while (count < limit) {
        float xx = __fmul_rn(x, x), yy = __fmul_rn(y, y);
        if (__fadd_rn(xx, yy) > 4.0f)
            break;
        y = __fadd_rn(__fmul_rn(__fmul_rn(2.0f, x), y), imaginary);
        x = __fadd_rn(__fsub_rn(xx, yy), real);
        count++;
    }
    counts[row * width + column] = count;
}
