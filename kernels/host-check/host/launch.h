// Runs a kernel on the host: all blocks, and in each all threads as fibers.
#pragma once
#include <cstddef>
#include <utility>

// The configuration of a launch. src/lib.rs has the same struct.
struct Launch {
    unsigned grid[3];
    unsigned block[3];
    // 0: fibers run in the order of the threads. Otherwise the order depends on this value, and
    // changes after each barrier and shuffle.
    unsigned long long seed;
};

using Body = void (*)(void* const* args);

// Calls body(args) once for each thread of the launch.
void run(const Launch& launch, Body body, void* const* args);

// Calls `kernel` with the values that `args` points to, like cuLaunchKernel.
template <auto kernel>
struct Unpacked;

template <class... Args, void (*kernel)(Args...)>
struct Unpacked<kernel> {
    template <std::size_t... i>
    static void call(void* const* args, std::index_sequence<i...>) {
        kernel(*static_cast<Args*>(args[i])...);
    }

    static void body(void* const* args) {
        call(args, std::index_sequence_for<Args...>());
    }
};

// Defines the function that Rust calls for a kernel.
#define HOST_KERNEL(name)                                                        \
    extern "C" void host_##name(const Launch* launch, void* const* args) {       \
        run(*launch, Unpacked<&name>::body, args);                               \
    }
