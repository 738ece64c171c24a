// Sum of squares of a flat gradient, and whether all of it was finite (overlap/ops/reduction.py).
//
// sum_squares: one fp64 sum per tile, in the order of norm.cuh. finish: one thread block adds them; thread t
// adds tiles t, t + 256, ... in order, then a binary tree over the 256 threads. Traffic per element: read the
// gradient (2 or 4 bytes).
#include "norm.cuh"

namespace overlap::cuda {

template <typename T>
__device__ __forceinline__ void square_tile(const SquareArguments& a) {
    constexpr int kCount = kItems<T>;
    const T* const grad = static_cast<const T*>(a.grad);
    const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kTile;
    Squares squares;
    if (is_aligned(grad) && tile + kTile <= a.size) {
        Unit<T, kCount> units[kPasses][kVectors<T>];
#pragma unroll
        for (int i = 0; i < kPasses * kVectors<T>; ++i) {
            units[i / kVectors<T>][i % kVectors<T>] =
                load<kCount>(grad + tile + (i * kThreads + threadIdx.x) * kCount);
        }
#pragma unroll
        for (int e = 0; e < kPasses * 8; ++e) {
            squares.add(e % 8, widen(units[e / 8][e % 8 / kCount].get(e % kCount)));
        }
    } else {
#pragma unroll 4
        for (int e = 0; e < kPasses * 8; ++e) {
            const std::int64_t index = tile + (e / kCount * kThreads + threadIdx.x) * kCount + e % kCount;
            if (index < a.size) squares.add(e % 8, widen(global(grad)[index]));
        }
    }
    write_tile_sum<T>(squares, a.partial);
}

__device__ __forceinline__ void finish_sum(const FinishArguments& a) {
    __shared__ double sums[kThreads];
    double sum = 0.0;
#pragma unroll 8
    for (std::int64_t tile = threadIdx.x; tile < a.tiles; tile += kThreads) sum += global(a.partial)[tile];
    sums[threadIdx.x] = sum;
    const double total = tree_sum<kThreads>(sums);
    if (threadIdx.x != 0) return;
    // No finite fp32 overflows an fp64 sum of squares: the sum alone tells. NaN fails the comparison.
    const double flag = total <= 1.7976931348623157e308 ? 0.0 : 1.0;
    double* const out = global(a.out);
    out[0] = a.accumulate ? out[0] + total : total;
    out[1] = a.accumulate && !(flag > out[1]) ? out[1] : flag;
}

}  // namespace overlap::cuda

#define OVERLAP_SUM_SQUARES(name, T) \
    OVERLAP_KERNEL(name, SquareArguments) { overlap::cuda::square_tile<T>(a); }

OVERLAP_SUM_SQUARES(sum_squares_fp32, float)
OVERLAP_SUM_SQUARES(sum_squares_bf16, __nv_bfloat16)
OVERLAP_SUM_SQUARES(sum_squares_fp16, __half)

OVERLAP_KERNEL(finish, FinishArguments) { overlap::cuda::finish_sum(a); }
