// Sum k rows in order and round once: the local half of a reduce-scatter (overlap/ops/reduction.py).
//
// One thread block per tile. A thread loads its vectors of several rows before it adds the first: k rows are
// k streams in flight. It reads all of its elements before it writes, so out may be one of the rows. Traffic
// per element: read k rows, write out (read it too to accumulate). The squares for the norm cost no traffic.
#include "norm.cuh"

namespace overlap::cuda {

// Rows loaded before the first of them is added.
inline constexpr int kAhead = 4;

// Sums, stores and returns kCount neighbouring elements from `index` on.
template <int kCount, typename Row, typename Out>
__device__ __forceinline__ Unit<Out, kCount> sum_unit(const ReduceArguments& a, std::int64_t index) {
    float total[kCount];
    // -0 is what changes nothing when added to: the sum starts with the first row's own bits.
    for (float& sum : total) sum = -0.0f;
    if (a.start != nullptr) {
        const auto start = load<kCount>(a.start + index);
        for (int j = 0; j < kCount; ++j) total[j] = start.get(j);
    }
#pragma unroll 1
    for (int first = 0; first < a.count; first += kAhead) {
        Unit<Row, kCount> rows[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (first + i < a.count)
                rows[i] = load<kCount>(reinterpret_cast<const Row*>(a.rows[first + i]) + index);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (first + i >= a.count) continue;
#pragma unroll
            for (int j = 0; j < kCount; ++j) total[j] = total[j] + widen(rows[i].get(j));
        }
    }
    Out* const out = static_cast<Out*>(a.out) + index;
    Unit<Out, kCount> old, unit;
    if (a.accumulate) old = load<kCount>(out);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
        const float sum = total[j] * a.scale;
        unit.set(j, narrow<Out>(a.accumulate ? widen(old.get(j)) + sum : sum));
    }
    store<kCount>(out, unit);
    return unit;
}

// A thread's 8 elements of the pass that starts at element `pass`.
template <typename Row, typename Out>
__device__ __forceinline__ void sum_pass(const ReduceArguments& a, std::int64_t pass, Squares& squares) {
    constexpr int kCount = kItems<Row>;
    if (a.aligned && pass + kPass <= a.size) {
#pragma unroll
        for (int v = 0; v < kVectors<Row>; ++v) {
            const auto unit = sum_unit<kCount, Row, Out>(a, pass + (v * kThreads + threadIdx.x) * kCount);
#pragma unroll
            for (int j = 0; j < kCount && a.partial != nullptr; ++j)
                squares.add(v * kCount + j, widen(unit.get(j)));
        }
        return;
    }
#pragma unroll 1
    for (int e = 0; e < 8; ++e) {
        const std::int64_t index = pass + (e / kCount * kThreads + threadIdx.x) * kCount + e % kCount;
        if (index < a.size) squares.add(e, widen(sum_unit<1, Row, Out>(a, index).get(0)));
    }
}

template <typename Row, typename Out>
__device__ __forceinline__ void sum_tile(const ReduceArguments& a) {
    const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kTile;
    Squares squares;
#pragma unroll 1
    for (std::int64_t pass = tile; pass < tile + kTile; pass += kPass) sum_pass<Row, Out>(a, pass, squares);
    if (a.partial != nullptr) write_tile_sum<Row>(squares, a.partial);
}

}  // namespace overlap::cuda

#define OVERLAP_REDUCE_SUM(name, Row, Out) \
    OVERLAP_KERNEL(name, ReduceArguments) { overlap::cuda::sum_tile<Row, Out>(a); }

OVERLAP_REDUCE_SUM(reduce_sum_fp32_fp32, float, float)
OVERLAP_REDUCE_SUM(reduce_sum_fp32_bf16, float, __nv_bfloat16)
OVERLAP_REDUCE_SUM(reduce_sum_fp32_fp16, float, __half)
OVERLAP_REDUCE_SUM(reduce_sum_bf16_fp32, __nv_bfloat16, float)
OVERLAP_REDUCE_SUM(reduce_sum_bf16_bf16, __nv_bfloat16, __nv_bfloat16)
OVERLAP_REDUCE_SUM(reduce_sum_bf16_fp16, __nv_bfloat16, __half)
OVERLAP_REDUCE_SUM(reduce_sum_fp16_fp32, __half, float)
OVERLAP_REDUCE_SUM(reduce_sum_fp16_bf16, __half, __nv_bfloat16)
OVERLAP_REDUCE_SUM(reduce_sum_fp16_fp16, __half, __half)
