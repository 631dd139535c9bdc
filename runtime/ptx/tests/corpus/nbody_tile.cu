// Sums the softened gravity of all bodies on each body, by tiles of bodies in shared memory.
extern "C" __global__ void nbody_tile(const float4 *bodies, float4 *forces, unsigned n)
{
    __shared__ float4 tile[64];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = bodies[i];
    float x = 0.0f, y = 0.0f, z = 0.0f;
    for (unsigned first = 0; first < n; first += blockDim.x) {
        tile[threadIdx.x] = bodies[first + threadIdx.x];
        __syncthreads();
        for (unsigned k = 0; k < blockDim.x; k++) {
            float4 other = tile[k];
            float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float strength = (1.0f + other.w) * inverse * inverse * inverse;
            x += strength * dx;
            y += strength * dy;
            z += strength * dz;
        }
        __syncthreads();
    }
    forces[i] = make_float4(x, y, z, 0.0f);
}
