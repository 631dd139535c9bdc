#include "launch.h"

#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace {

constexpr std::size_t STACK_BYTES = 64 << 10;
constexpr unsigned WARP_THREADS = 32;

enum class State { Runs, AtBarrier, InShuffle, Done };

// A thread of the block. `context` is the point where it continues after a wait.
struct Thread {
    ucontext_t context;
    uint3 index;
    State state;
    std::uint64_t shuffled;
};

// A fiber runs one thread after the other until one has to wait. That thread keeps the fiber, and
// the next thread begins on another. So kernels without barriers take one fiber per block.
struct Block {
    ucontext_t scheduler;
    std::vector<Thread> threads;
    std::unique_ptr<char[]> stacks;
    // The order in which threads begin and continue.
    std::vector<std::size_t> order;
    // The number of threads that have begun.
    std::size_t begun = 0;
    // The running thread.
    std::size_t current = 0;
    Body body = nullptr;
    void* const* args = nullptr;
    unsigned long long seed = 0;
};

thread_local Block* block = nullptr;

[[noreturn]] void die(const char* why) {
    std::fprintf(stderr, "host-check: block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, why);
    std::abort();
}

void let_run(std::size_t thread) {
    block->current = thread;
    threadIdx = block->threads[thread].index;
}

void enter_fiber() {
    while (block->begun < block->threads.size()) {
        let_run(block->order[block->begun++]);
        block->body(block->args);
        block->threads[block->current].state = State::Done;
    }
    // Returns to the scheduler, which is the context's successor.
}

void yield(State state) {
    Thread& thread = block->threads[block->current];
    thread.state = state;
    swapcontext(&thread.context, &block->scheduler);
}

void shuffle_order() {
    if (block->seed == 0) {
        return;
    }
    for (std::size_t i = block->order.size(); i > 1; --i) {
        // xorshift64*, Vigna 2016.
        block->seed ^= block->seed >> 12;
        block->seed ^= block->seed << 25;
        block->seed ^= block->seed >> 27;
        std::swap(block->order[i - 1], block->order[(block->seed * 0x2545F4914F6CDD1DULL >> 33) % i]);
    }
}

// Marks the threads that may continue: those of a warp that has arrived at a shuffle, or of a block
// that has arrived at a barrier. Returns false if all threads have returned. Aborts if none may
// continue.
bool release() {
    auto& threads = block->threads;
    std::size_t at_barrier = 0, done = 0;
    bool released = false;
    for (std::size_t first = 0; first < threads.size(); first += WARP_THREADS) {
        const std::size_t end = std::min(first + WARP_THREADS, threads.size());
        std::size_t shuffling = 0;
        for (std::size_t i = first; i < end; ++i) {
            shuffling += threads[i].state == State::InShuffle;
            at_barrier += threads[i].state == State::AtBarrier;
            done += threads[i].state == State::Done;
        }
        if (shuffling == WARP_THREADS) {
            for (std::size_t i = first; i < end; ++i) {
                threads[i].state = State::Runs;
            }
            released = true;
        }
    }
    if (done == threads.size()) {
        return false;
    }
    if (at_barrier == threads.size()) {
        for (Thread& thread : threads) {
            thread.state = State::Runs;
        }
        released = true;
    }
    if (!released) {
        die(done > 0 ? "some threads have returned, others wait for them" : "threads wait for each other at different places");
    }
    return true;
}

void run_block() {
    for (std::size_t i = 0; i < block->threads.size(); ++i) {
        const unsigned at = unsigned(i);
        block->threads[i].index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
        block->threads[i].state = State::Runs;
    }
    shuffle_order();
    block->begun = 0;
    for (std::size_t fibers = 0; block->begun < block->threads.size(); ++fibers) {
        ucontext_t start;
        getcontext(&start);
        start.uc_stack.ss_sp = &block->stacks[fibers * STACK_BYTES];
        start.uc_stack.ss_size = STACK_BYTES;
        start.uc_link = &block->scheduler;
        makecontext(&start, enter_fiber, 0);
        swapcontext(&block->scheduler, &start);
    }
    while (release()) {
        shuffle_order();
        for (std::size_t i : block->order) {
            if (block->threads[i].state == State::Runs) {
                let_run(i);
                swapcontext(&block->scheduler, &block->threads[i].context);
            }
        }
    }
}

} // namespace

void __syncthreads() {
    yield(State::AtBarrier);
}

std::uint64_t exchange_in_warp(std::uint64_t value, unsigned mask) {
    const std::size_t own = block->current;
    block->threads[own].shuffled = value;
    yield(State::InShuffle);
    const std::uint64_t other = block->threads[own ^ mask].shuffled;
    // No lane may write its next value before all lanes have read this one.
    yield(State::InShuffle);
    return other;
}

void run(const Launch& launch, Body body, void* const* args) {
    blockDim = {launch.block[0], launch.block[1], launch.block[2]};
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    const std::size_t threads = std::size_t(blockDim.x) * blockDim.y * blockDim.z;
    Block now;
    now.threads.resize(threads);
    now.stacks.reset(new char[threads * STACK_BYTES]);
    for (std::size_t i = 0; i < threads; ++i) {
        now.order.push_back(i);
    }
    now.body = body;
    now.args = args;
    now.seed = launch.seed;
    block = &now;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
                run_block();
            }
        }
    }
    block = nullptr;
}
