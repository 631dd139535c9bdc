// Scales vectors of four floats, and adds the halves of each pair of doubles.
extern "C" __global__ void vector_loads(const float *x, float *y, const double *pairs, double *sums, float factor, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float4 four = reinterpret_cast<const float4 *>(x)[i];
    four = make_float4(factor * four.x, factor * four.y, factor * four.z, factor * four.w);
    reinterpret_cast<float4 *>(y)[i] = four;
    double2 two = reinterpret_cast<const double2 *>(pairs)[i];
    sums[i] = two.x + two.y;
}
