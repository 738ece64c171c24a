// CUDA C++ for a CPU, as far as csrc/cuda goes: included before every kernel source, it gives a C++ compiler
// the words and variables of the language, so that the kernels' own code runs in tests. Threads of a block
// take turns as fibers (fibers.h) and change at __syncthreads.
#pragma once

#include <cstdint>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __builtin_assume(condition)
#define __isGlobal(pointer) true

// By reference: a launch is synchronous here, so the caller's struct outlives it.
#define OVERLAP_KERNEL(name, Arguments) extern "C" void name(const overlap::cuda::Arguments& a)

struct alignas(8) uint2 {
    std::uint32_t x, y;
};
struct alignas(16) uint4 {
    std::uint32_t x, y, z, w;
};
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
    return {x, y, z, w};
}

struct Index {
    unsigned x, y;
};
extern Index threadIdx, blockIdx;

void __syncthreads();

inline std::uint64_t __umul64hi(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
