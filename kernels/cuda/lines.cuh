// The lines of an array along one of its dimensions.
//
// The array is `outer` × `n` × `inner`, row-major. A line has the `n` elements that share the outer
// and the inner index, `inner` elements apart. If `inner` is 1, a line is a row, and a team takes
// it. Otherwise one thread takes a line: neighbouring threads then read neighbouring elements.
#pragma once
#include "warps.cuh"

// Calls f(team, line, first) for each line, with its number and the index of its first element. The
// threads of the launch share the lines, and all threads of a team make the same calls.
template <class F>
__device__ __forceinline__ void each_line(u64 outer, u64 n, u64 inner, F f) {
    const Team us = inner == 1 ? team() : Team{0, 1};
    const u64 teams = threads() / us.lanes, lines = outer * inner;
    for (u64 l = thread() / us.lanes; l < lines; l += teams) {
        f(us, l, l / inner * n * inner + l % inner);
    }
}
