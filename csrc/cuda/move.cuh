// Moving elements between tensors and one row of a bucket: what pack and unpack share.
#pragma once

#include "element.cuh"

namespace overlap::cuda {

// What one thread block moves: part of one row of one region.
struct Piece {
    std::uint64_t tensor;  // word of the table, 0 = no tensor
    const Dim* dims;
    int dim_count;       // 0 where the tensor is contiguous
    std::int64_t first;  // element of the tensor, row-major
    std::int64_t place;  // element of the bucket
    int held;            // elements that belong to the tensor
    int span;            // elements in all; behind the held ones lies padding
};

//     blockIdx.x ->   0     1     2    |  3     4
//     row 0         | full |full |tail 0| full |tail 0|     blockIdx.y = row
//     row 1         | full |tail 0 zeros| full |zeros |
//                      region 0            region 1
__device__ __forceinline__ Piece find_piece(const MoveArguments& a) {
    const Block block = global(a.blocks)[blockIdx.x];
    const Region region = global(a.regions)[block.region];
    const std::int64_t row = blockIdx.y;
    const std::int64_t begin = static_cast<std::int64_t>(block.number) * kBlock;
    const std::int64_t left = region.numel - row * region.chunk;
    const std::int64_t held = (left < region.chunk ? left : region.chunk) - begin;
    const std::int64_t span = region.end - region.offset - begin;
    const std::uint64_t tensor = a.tensors[block.region - a.first];
    return {tensor,
            global(a.dims) + region.first_dim,
            region.dims,
            row * region.chunk + begin,
            row * a.width + region.offset + begin,
            static_cast<int>(tensor == 0 || held < 0 ? 0 : (held < kBlock ? held : kBlock)),
            static_cast<int>(span < kBlock ? span : kBlock)};
}

// Where row-major element `index` lies, from the first one.
__device__ __forceinline__ std::int64_t strided_offset(const Piece& piece, std::int64_t index) {
    std::int64_t offset = 0;
#pragma unroll 1
    for (int i = piece.dim_count - 1; i > 0; --i) {
        const Dim dim = global(piece.dims)[i];
        const std::int64_t outer = static_cast<std::int64_t>(__umul64hi(index, dim.magic) >> dim.shift);
        offset += (index - outer * dim.size) * dim.stride;
        index = outer;
    }
    return offset + index * global(piece.dims)[0].stride;
}

// The value's bits where nothing has to be computed, else one rounding per operation.
template <typename To, typename From>
__device__ __forceinline__ To scaled(From value, float scale, bool scales) {
    if constexpr (std::is_same_v<From, To>) {
        if (!scales) return value;
    }
    return narrow<To>(scales ? widen(value) * scale : widen(value));
}

// Moves units 0..count-1, each from from(u) to to(u); loads a batch before the first store, so that enough
// bytes are in flight to hide the latency of memory.
template <int kUnit, int kBatch, bool kAdd, typename From, typename To>
__device__ __forceinline__ void move_units(const From& from, const To& to, int count, float scale) {
    using Source = std::remove_cv_t<std::remove_pointer_t<decltype(from(0))>>;
    using Target = std::remove_pointer_t<decltype(to(0))>;
    const bool scales = scale != 1.0f;
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += kBatch * kThreads) {
        Unit<Source, kUnit> values[kBatch];
        Unit<Target, kUnit> old[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int unit = first + i * kThreads;
            if (unit >= count) continue;
            values[i] = load<kUnit>(from(unit));
            if constexpr (kAdd) old[i] = load<kUnit>(to(unit));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int unit = first + i * kThreads;
            if (unit >= count) continue;
            Unit<Target, kUnit> result;
#pragma unroll
            for (int j = 0; j < kUnit; ++j) {
                if constexpr (kAdd) {
                    result.set(j, narrow<Target>(widen(old[i].get(j)) + widen(values[i].get(j)) * scale));
                } else {
                    result.set(j, scaled<Target>(values[i].get(j), scale, scales));
                }
            }
            store<kUnit>(to(unit), result);
        }
    }
}

// `count` elements that lie back to back on both sides.
template <bool kAdd, typename From, typename To>
__device__ __forceinline__ void move_run(const From* from, To* to, int count, float scale) {
    // 16 bytes on the wider side and half of them on the other: neighbours in a warp touch neighbouring
    // bytes.
    constexpr int kUnit = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
    const bool is_wide = is_aligned(from) && is_aligned(to);
    const int units = is_wide ? count / kUnit : 0;
    move_units<kUnit, 4, kAdd>([=](int u) { return from + u * kUnit; }, [=](int u) { return to + u * kUnit; },
                               units, scale);
    const From* rest = from + units * kUnit;
    To* target = to + units * kUnit;
    move_units<1, 8, kAdd>([=](int u) { return rest + u; }, [=](int u) { return target + u; },
                           count - units * kUnit, scale);
}

}  // namespace overlap::cuda
