// Passes 32 values between two warps, which change them alternately. A volatile flag has the turn.
// Fault: no fence between the values and the flag that passes them on.
extern "C" __global__ void ping_pong(unsigned *data, unsigned rounds)
{
    __shared__ volatile unsigned turn;
    __shared__ unsigned values[32];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0)
        values[lane] = data[lane];
    if (threadIdx.x == 0)
        turn = 0;
    __syncthreads();
    for (unsigned round = 0; round < rounds; round++) {
        if (lane == 0) {
            while (turn != warp) {
            }
            __threadfence_block();
        }
        __syncwarp();
        unsigned other = values[31 - lane]; // fault
        __syncwarp();
        values[lane] = 3 * other + lane + warp; // fault
        __syncwarp();
        if (lane == 0)
            turn = 1 - warp;
    }
    __syncthreads();
    if (warp == 0)
        data[lane] = values[lane];
}
