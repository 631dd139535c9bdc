// Writes the sum of weighted coordinates to each cell of a box, from a grid of three dimensions.
extern "C" __global__ void volume(int *cells, int width, int height, int depth)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x < width && y < height && z < depth)
        cells[(z * height + y) * width + x] = x - 10 * y + 100 * z;
}
