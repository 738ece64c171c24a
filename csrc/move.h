// Scaled copies between float dtypes: what pack and unpack do to one stretch.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace overlap {

// out = in * scale, rounded once; a scale of 1 between equal dtypes moves bits unchanged.
void move(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float scale);

// out = out + in * scale, in float, rounded once.
void move_onto(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float scale);

// Both, for `rows` runs of `chunk` elements each, back to back in `in` and `stride` apart in `out`.
void move_rows(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t rows,
               std::int64_t chunk, std::int64_t stride, float scale, bool add);

// Zeroes `rows` runs of `count` elements, `stride` apart.
void clear_rows(DType dtype, void* out, std::int64_t rows, std::int64_t count, std::int64_t stride);

}  // namespace overlap
