// Flatten, scale and cast many gradients into one rank-major bucket (overlap/ops/movement.py).
//
// One thread block per kBlock columns of one region and row; the gradient first, then zeros up to the
// region's end (with kAdd what lies behind the gradient is left alone). Traffic per element: read the
// gradient (2 or 4 bytes), write the bucket (read it too with kAdd). A gradient that is not contiguous is
// read in row-major order where it lies: no copy, but neighbours in a warp then touch other sectors of
// memory.
#include "move.cuh"

namespace overlap::cuda {

template <typename T>
__device__ __forceinline__ void zero_run(T* to, int count) {
    constexpr int kUnit = 16 / sizeof(T);
    const int misaligned = static_cast<int>((reinterpret_cast<std::uintptr_t>(to) & 15) / sizeof(T));
    const int head = misaligned == 0 ? 0 : kUnit - misaligned;
    const int units = count > head ? (count - head) / kUnit : 0;
    const int tail = units > 0 ? head + units * kUnit : 0;
#pragma unroll 1
    for (int u = threadIdx.x; u < units; u += kThreads) {
        global(reinterpret_cast<uint4*>(to + head))[u] = make_uint4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
        if (i < head || i >= tail) global(to)[i] = narrow<T>(0.0f);
    }
}

template <typename To, bool kAdd>
__device__ __forceinline__ void pack_piece(const MoveArguments& a) {
    const Piece piece = find_piece(a);
    To* const to = static_cast<To*>(a.bucket) + piece.place;
    if (piece.held > 0) {
        with_tensor(piece.tensor, [&](const auto* grad) {
            if (piece.dim_count == 0) return move_run<kAdd>(grad + piece.first, to, piece.held, a.scale);
            move_units<1, 4, kAdd>([&](int u) { return grad + strided_offset(piece, piece.first + u); },
                                   [=](int u) { return to + u; }, piece.held, a.scale);
        });
    }
    if constexpr (!kAdd) zero_run(to + piece.held, piece.span - piece.held);
}

}  // namespace overlap::cuda

#define OVERLAP_PACK(name, To, kAdd) \
    OVERLAP_KERNEL(name, MoveArguments) { overlap::cuda::pack_piece<To, kAdd>(a); }

OVERLAP_PACK(pack_fp32, float, false)
OVERLAP_PACK(pack_bf16, __nv_bfloat16, false)
OVERLAP_PACK(pack_fp16, __half, false)
OVERLAP_PACK(pack_add_fp32, float, true)
OVERLAP_PACK(pack_add_bf16, __nv_bfloat16, true)
OVERLAP_PACK(pack_add_fp16, __half, true)
