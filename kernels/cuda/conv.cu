// The two kernels around the product of a convolution: see kernels/src/conv.rs.
//
// `im2col` writes 4 bytes per element of the columns. Its reads of 4 bytes each come from a cache
// after the first one. `channels_to_images` moves 8 bytes per element. Both are bound by memory.
#include "vector.cuh"

KERNEL im2col(u64 images, u64 channels, u64 height, u64 width, u64 kernel_height, u64 kernel_width, u64 stride_down,
              u64 stride_across, u64 padding_down, u64 padding_across, u64 out_height, u64 out_width,
              const float* __restrict__ x, float* __restrict__ columns) {
    // Without columns, the other sizes may be any numbers.
    if (kernel_height == 0 || kernel_width == 0 || images == 0 || out_height == 0 || out_width == 0) {
        return;
    }
    // A thread writes the elements of one channel in one column.
    const u64 pixels = out_height * out_width, across = images * pixels;
    for (u64 e = thread(); e < channels * across; e += threads()) {
        const u64 channel = quotient_of(e, across), column = e - channel * across;
        const u64 image = quotient_of(column, pixels), pixel = column - image * pixels;
        const u64 down = quotient_of(pixel, out_width);
        // In the padding before the first row, `top + i` wraps around to a large number.
        const u64 top = down * stride_down - padding_down;
        const u64 left = (pixel - down * out_width) * stride_across - padding_across;
        const float* plane = x + (image * channels + channel) * height * width;
        float* to = columns + channel * kernel_height * kernel_width * across + column;
        for (u64 i = 0; i < kernel_height; ++i) {
            for (u64 j = 0; j < kernel_width; ++j, to += across) {
                const u64 row = top + i, col = left + j;
                *to = row < height && col < width ? plane[row * width + col] : 0.0f;
            }
        }
    }
}

KERNEL channels_to_images(u64 images, u64 channels, u64 pixels, u32 biased, const float* __restrict__ x,
                          const float* __restrict__ bias, float* __restrict__ y) {
    for (u64 e = thread(); e < images * channels * pixels; e += threads()) {
        const u64 plane = quotient_of(e, pixels), pixel = e - plane * pixels;
        const u64 image = quotient_of(plane, channels), channel = plane - image * channels;
        const float value = x[(channel * images + image) * pixels + pixel];
        y[e] = biased != 0 ? value + bias[channel] : value;
    }
}
