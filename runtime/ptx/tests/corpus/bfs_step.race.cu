// Lists the unvisited neighbours of a frontier in a graph by rows (CSR), and marks them visited.
// Fault: claims a vertex by a plain read and a plain write.
extern "C" __global__ void bfs_step(const unsigned *offsets, const unsigned *columns, const unsigned *frontier, unsigned size,
                                    unsigned *levels, unsigned level, unsigned *next, unsigned *next_size)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size)
        return;
    unsigned vertex = frontier[i];
    for (unsigned edge = offsets[vertex]; edge < offsets[vertex + 1]; edge++) {
        unsigned neighbour = columns[edge];
        if (levels[neighbour] == 0xffffffff) { // fault
            levels[neighbour] = level; // fault
            next[atomicAdd(next_size, 1)] = neighbour;
        }
    }
}
