// Rounds floats to integers in the four modes, saturates, and narrows doubles to floats.
extern "C" __global__ void conversions(const float *x, int *rounded, const double *wide, float *narrow, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float a = 100.0f * x[i];
    rounded[0 * n + i] = __float2int_rn(a);
    rounded[1 * n + i] = __float2int_rz(a);
    rounded[2 * n + i] = __float2int_ru(a);
    rounded[3 * n + i] = __float2int_rd(a);
    rounded[4 * n + i] = static_cast<int>(1e8f * a);
    rounded[5 * n + i] = static_cast<int>(rintf(a) + truncf(a) + ceilf(a) + floorf(a));
    narrow[0 * n + i] = __double2float_rn(wide[i]);
    narrow[1 * n + i] = __double2float_rz(wide[i]);
    narrow[2 * n + i] = __saturatef(a);
    narrow[3 * n + i] = __ll2float_rn(static_cast<long long>(1e15 * wide[i]));
}
