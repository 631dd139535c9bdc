// Evaluates functions of the math library, and the faster ones of the hardware.
extern "C" __global__ void math(const float *x, float *precise, float *fast, double *exponential, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float a = x[i], positive = fabsf(a) + 0.25f;
    precise[0 * n + i] = expf(4.0f * a);
    precise[1 * n + i] = logf(positive);
    precise[2 * n + i] = sinf(4.0f * a);
    precise[3 * n + i] = sinf(1e6f * a);
    precise[4 * n + i] = powf(positive, a);
    precise[5 * n + i] = rsqrtf(positive);
    precise[6 * n + i] = tanhf(a);
    precise[7 * n + i] = sqrtf(positive) / (2.0f + a);
    fast[0 * n + i] = __expf(4.0f * a);
    fast[1 * n + i] = __logf(positive);
    fast[2 * n + i] = __sinf(a);
    fast[3 * n + i] = __cosf(a);
    fast[4 * n + i] = __fdividef(a, positive);
    exponential[i] = exp(10.0 * a);
}
