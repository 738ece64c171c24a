// What the host hands to the kernels: tables on the device, and one argument struct per launch.
//
// The addresses of tensors travel by value inside the argument struct, 8 bytes each: nothing is uploaded when
// gradients move. What stays the same from step to step (regions, blocks, strides) lies in a table on the
// device. overlap/ops/cuda_face/tables.py and cupy_route.py write the same layouts.
#pragma once

#include <cstdint>

// A kernel with kThreads threads per block that takes its arguments by value: in constant memory, read in
// place. Four blocks fit on a multiprocessor: with 64 bytes on their way per thread, several times what hides
// the latency of memory. tests/ops/cuda/on_cpu/kernel.h is the same for a CPU.
#ifndef OVERLAP_KERNEL
#define OVERLAP_KERNEL(name, Arguments)                                      \
    extern "C" __global__ void __launch_bounds__(overlap::cuda::kThreads, 4) \
        name(const __grid_constant__ overlap::cuda::Arguments a)
#endif

namespace overlap::cuda {

inline constexpr int kThreads = 256;

// Columns of a bucket row that one thread block moves: 4 or 8 vectors of 16 bytes per thread.
inline constexpr int kBlock = 8192;

// Elements that one thread block sums; part of the order of grad_norm's sum (norm.cuh).
inline constexpr int kTile = 4096;

// Addresses in one launch: what fits into the 4096 bytes of arguments that every driver takes. More tensors
// than that take several launches (pack, unpack), or continue a sum from an fp32 scratch (reduce_sum).
// Drivers since CUDA 12.1 would take 32,764 bytes, but hardly a unit has more tensors, and each launch copies
// all of the struct.
inline constexpr int kCapacity = 505;
inline constexpr int kMaxArgumentBytes = 4096;

// A tensor in one word: its address, and above it the dtype. 0 = no tensor.
enum Code : std::uint64_t { kFp32 = 0, kBf16 = 1, kFp16 = 2 };
inline constexpr int kCodeShift = 62;
inline constexpr std::uint64_t kAddressMask = (std::uint64_t{1} << kCodeShift) - 1;

// Columns [offset, end) of every bucket row (overlap/ops/slots.py), and the dimensions of the tensor that
// fills them: none where it is contiguous, else `dims` records of the table from `first_dim` on, outermost
// first.
struct Region {
    std::int64_t offset, end, chunk, numel;
    std::int32_t first_dim, dims;
};

// n / size == umulhi(n, magic) >> shift for every n below 2^63, with shift = ceil(log2(size)) - 1 and
// magic = ceil(2^(64 + shift) / size) (Granlund and Montgomery 1994); size >= 2.
struct Dim {
    std::int64_t size, stride;
    std::uint64_t magic;
    std::int64_t shift;
};

// Columns [number * kBlock, ...) of one region.
struct Block {
    std::int32_t region, number;
};

struct MoveArguments {
    const Region* regions;
    const Block* blocks;
    const Dim* dims;
    void* bucket;
    std::int64_t width;
    float scale;
    std::int32_t first;  // region of tensors[0]
    std::uint64_t tensors[kCapacity];
};

struct ReduceArguments {
    void* out;
    const float* start;  // a sum to continue, or null
    double* partial;     // one sum of squares per tile, or null
    std::int64_t size;
    std::int32_t count;
    float scale;
    std::int32_t aligned;  // every row and out start at a multiple of 16 bytes
    std::int32_t accumulate;
    std::uint64_t rows[kCapacity];
};

struct SquareArguments {
    const void* grad;
    double* partial;
    std::int64_t size;
};

struct FinishArguments {
    const double* partial;
    double* out;
    std::int64_t tiles;
    std::int64_t accumulate;
};

inline constexpr int kHeaderBytes = 48;
static_assert(sizeof(Region) == 40 && sizeof(Block) == 8 && sizeof(Dim) == 32);
static_assert(sizeof(MoveArguments) == kHeaderBytes + 8 * kCapacity);
static_assert(sizeof(ReduceArguments) == kHeaderBytes + 8 * kCapacity);
static_assert(kHeaderBytes + 8 * kCapacity <= kMaxArgumentBytes);

}  // namespace overlap::cuda
