// Conversion a block at a time, through floats that stay in L1: an update rule is then one loop over floats
// instead of one per combination of dtypes.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace overlap {

// Floats per block: 4 kB, so that an op's few blocks fit in L1 together. Divides every tile and grain.
inline constexpr std::int64_t kBlock = 1024;

// Elements [index, index + count) as floats: the array itself if it is fp32, else converted into `scratch`.
const float* widen(DType dtype, const void* base, std::int64_t index, std::int64_t count, float* scratch);

// Writes floats as `dtype`, rounded to nearest even; NaN stays NaN.
void narrow(DType dtype, const float* values, void* base, std::int64_t index, std::int64_t count);

}  // namespace overlap
