// Copy one rank-major bucket into many tensors, scaled and cast (overlap/ops/movement.py): pack backwards.
//
// The same thread blocks as pack; those that hold padding only return at once. Traffic per element: read the
// bucket (2 or 4 bytes), write the tensor.
#include "move.cuh"

namespace overlap::cuda {

template <typename From>
__device__ __forceinline__ void unpack_piece(const MoveArguments& a) {
    const Piece piece = find_piece(a);
    if (piece.held == 0) return;
    const From* const from = static_cast<const From*>(a.bucket) + piece.place;
    with_tensor(piece.tensor, [&](auto* tensor) {
        if (piece.dim_count == 0) return move_run<false>(from, tensor + piece.first, piece.held, a.scale);
        move_units<1, 4, false>([=](int u) { return from + u; },
                                [&](int u) { return tensor + strided_offset(piece, piece.first + u); },
                                piece.held, a.scale);
    });
}

}  // namespace overlap::cuda

#define OVERLAP_UNPACK(name, From) \
    OVERLAP_KERNEL(name, MoveArguments) { overlap::cuda::unpack_piece<From>(a); }

OVERLAP_UNPACK(unpack_fp32, float)
OVERLAP_UNPACK(unpack_bf16, __nv_bfloat16)
OVERLAP_UNPACK(unpack_fp16, __half)
