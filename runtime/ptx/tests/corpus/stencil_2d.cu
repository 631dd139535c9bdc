// Replaces each cell by the sum of its four neighbours minus three times itself; cells outside are
// zero. Counts per block the cells that changed.
extern "C" __global__ void stencil_2d(const int *x, int *y, unsigned *changed, int width, int height)
{
    __shared__ int tile[10][18];
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 180; i += 128) {
        int r = blockIdx.y * 8 + i / 18 - 1, c = blockIdx.x * 16 + i % 18 - 1;
        tile[i / 18][i % 18] = r >= 0 && r < height && c >= 0 && c < width ? x[r * width + c] : 0;
    }
    bool differs = false;
    __syncthreads();
    if (column < width && row < height) {
        int r = threadIdx.y + 1, c = threadIdx.x + 1;
        int sum = tile[r - 1][c] + tile[r + 1][c] + tile[r][c - 1] + tile[r][c + 1] - 3 * tile[r][c];
        y[row * width + column] = sum;
        differs = sum != tile[r][c];
    }
    int count = __syncthreads_count(differs);
    if (threadIdx.x == 0 && threadIdx.y == 0)
        changed[blockIdx.y * gridDim.x + blockIdx.x] = count;
}
