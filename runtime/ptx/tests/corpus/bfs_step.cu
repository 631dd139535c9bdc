// Lists the unvisited neighbours of a frontier in a graph by rows (CSR), and marks them visited.
extern "C" __global__ void bfs_step(const unsigned *offsets, const unsigned *columns, const unsigned *frontier, unsigned size,
                                    unsigned *levels, unsigned level, unsigned *next, unsigned *next_size)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size)
        return;
    unsigned vertex = frontier[i];
    for (unsigned edge = offsets[vertex]; edge < offsets[vertex + 1]; edge++) {
        unsigned neighbour = columns[edge];
        if (atomicCAS(&levels[neighbour], 0xffffffff, level) == 0xffffffff)
            next[atomicAdd(next_size, 1)] = neighbour;
    }
}
