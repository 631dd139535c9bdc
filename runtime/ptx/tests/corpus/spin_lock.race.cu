// Adds to totals under one lock each. Lanes of a warp contend for the same lock, so the loop ends
// only if a waiting lane does not hold up the owner (Volta and later).
// Fault: no fence between the addition and the release of the lock.
extern "C" __global__ void spin_lock(const unsigned *x, unsigned *totals, unsigned *locks, unsigned count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, which = i % count;
    while (atomicCAS(&locks[which], 0, 1) != 0) {
    }
    __threadfence();
    totals[which] += x[i]; // fault
    atomicExch(&locks[which], 0);
}
