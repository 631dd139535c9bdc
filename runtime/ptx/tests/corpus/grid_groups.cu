// Adds to each element its right neighbour, in rounds that the barrier of the grid separates.
#include <cooperative_groups.h>

extern "C" __global__ void grid_groups(unsigned *a, unsigned *b, unsigned rounds)
{
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    unsigned i = grid.thread_rank(), n = grid.num_threads();
    for (unsigned round = 0; round < rounds; round++) {
        unsigned *from = round % 2 == 0 ? a : b, *to = round % 2 == 0 ? b : a;
        to[i] = from[i] + from[(i + 1) % n];
        grid.sync();
    }
}
