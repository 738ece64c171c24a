// Conversions between float and the 16-bit formats, a block at a time: ops compute in float on blocks that
// stay in L1, so each op is one loop instead of one per pair of dtypes.
#pragma once

#include <cstdint>

namespace overlap {

// The codes are shared with overlap/ops/native.py and kernels/convert.py.
enum class DType : std::int64_t { fp32 = 0, bf16 = 1, fp16 = 2 };

// Floats per block: 8 kB, so that an op's few blocks fit in L1 together.
inline constexpr std::int64_t kBlock = 2048;

DType checked_dtype(std::int64_t code);

// Where element `index` of an array of `dtype` starts.
void* at(DType dtype, void* base, std::int64_t index);
const void* at(DType dtype, const void* base, std::int64_t index);

// Elements [index, index + count) as floats: the array itself if it is fp32, else converted into `scratch`.
const float* widen(DType dtype, const void* base, std::int64_t index, std::int64_t count, float* scratch);

// Writes floats as `dtype`, rounded to nearest even; NaN stays NaN.
void narrow(DType dtype, const float* values, void* base, std::int64_t index, std::int64_t count);

}  // namespace overlap
