// Stochastic rounding to bf16.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace overlap {

// Rounds floats up or down with probability proportional to the distance; `random` has 16 bits for each.
void narrow_stochastic(const float* values, const std::uint16_t* random, Bf16* out, std::int64_t count);

}  // namespace overlap
