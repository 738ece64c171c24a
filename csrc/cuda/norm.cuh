// The order in which squares are summed, shared by grad_norm and by reduce_sum's norm: it depends on an
// element's index alone, so both give the same bits.
//
//   element   0 1 2 3 | 4 5 6 7 | ...   four neighbours are a quad
//   quad q    adds its elements of pass 0 in order, then those of pass 1: 512 fp64 sums
//   tile      two passes of 2048 elements; adds neighbours, then pairs of them, ...: a binary tree
//   total     grad_norm.cu: finish
//
// Squares of fp32 are exact in fp64. What lies beyond the end counts as 0, which changes no bit.
#pragma once

#include "element.cuh"

namespace overlap::cuda {

inline constexpr int kPass = 2048;
inline constexpr int kPasses = kTile / kPass;
inline constexpr int kQuads = kPass / 4;

// A thread has 8 elements of a pass: one vector of 16-bit elements, or two of fp32 that lie 1024 elements
// apart. Its element (vector, item) lies at (vector * kThreads + thread) * kItems + item.
template <typename T>
inline constexpr int kItems = 16 / sizeof(T);
template <typename T>
inline constexpr int kVectors = kPass / kThreads / kItems<T>;

// The sums of the two quads that a thread has.
struct Squares {
    double low = 0.0, high = 0.0;

    // `index` counts the thread's 8 elements of a pass.
    __device__ __forceinline__ void add(int index, float value) {
        const double wide = value;
        if (index < 4) {
            low += wide * wide;
        } else {
            high += wide * wide;
        }
    }
};

// Adds neighbours until one is left. All threads of the block take part; thread 0 returns the sum.
template <int kCount>
__device__ __forceinline__ double tree_sum(double* sums) {
#pragma unroll 1
    for (int stride = 1; stride < kCount; stride *= 2) {
        __syncthreads();
        for (int left = 2 * stride * static_cast<int>(threadIdx.x); left < kCount;
             left += 2 * stride * kThreads) {
            sums[left] += sums[left + stride];
        }
    }
    return sums[0];
}

// T is the type by which the thread's elements were laid out.
template <typename T>
__device__ __forceinline__ void write_tile_sum(const Squares& squares, double* partial) {
    __shared__ double sums[kQuads];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int vector = i * 4 / kItems<T>, within = i * 4 % kItems<T> / 4;
        sums[(vector * kThreads + threadIdx.x) * (kItems<T> / 4) + within] =
            i == 0 ? squares.low : squares.high;
    }
    const double sum = tree_sum<kQuads>(sums);
    if (threadIdx.x == 0) global(partial)[blockIdx.x] = sum;
}

}  // namespace overlap::cuda
