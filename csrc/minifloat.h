// 8-bit floats, and the scale of a block of 8-bit numbers; overlap/ops/reference/rounding.py defines them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "clones.h"
#include "dtype.h"

namespace overlap {

// An 8-bit float without infinities: 3 mantissa bits, an exponent with `bias`. e4m3 has a sign bit on top.
struct Minifloat {
    std::uint32_t bias, max_code;
};
inline constexpr Minifloat kE4M3{7, 126};    // 2^-9 .. 448
inline constexpr Minifloat kUE5M3{15, 255};  // 2^-17 .. 122880, unsigned
inline constexpr float kMaxE4M3 = 448.0f;
inline constexpr float kMaxUE5M3 = 122880.0f;

inline float power_of_two(std::int32_t exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// `value` >= 0 and finite. Carry: 20 bits below the mantissa's last; adding to them rounds.
inline std::uint32_t encode_with(float value, std::uint32_t carry, float subnormal, Minifloat format) {
    const std::uint32_t normal =
        ((std::bit_cast<std::uint32_t>(value) + carry) >> 20) - ((127u - format.bias) << 3);
    const bool is_normal = value >= power_of_two(1 - static_cast<std::int32_t>(format.bias));
    // The conversion must not see what does not fit; the branch not taken is computed all the same.
    const auto small = static_cast<std::uint32_t>(static_cast<std::int32_t>(is_normal ? 0.0f : subnormal));
    return std::min(is_normal ? normal : small, format.max_code);
}

inline std::uint32_t encode_nearest(float value, Minifloat format) {
    const std::uint32_t odd = (std::bit_cast<std::uint32_t>(value) >> 20) & 1u;
    // Adding 2^23 leaves no fraction bits: the addition itself rounds half to even.
    const float scaled = value * power_of_two(static_cast<std::int32_t>(format.bias) + 2);
    return encode_with(value, 0x7FFFFu + odd, (scaled + 0x1p23f) - 0x1p23f, format);
}

inline std::uint32_t encode_stochastic(float value, std::uint16_t random, Minifloat format) {
    const float scaled = value * power_of_two(static_cast<std::int32_t>(format.bias) + 2);
    const float raised = scaled + static_cast<float>(random) * 0x1p-16f;
    return encode_with(value, static_cast<std::uint32_t>(random) << 4, raised, format);
}

inline float decode(std::uint32_t code, Minifloat format) {
    const float normal = std::bit_cast<float>((code << 20) + ((127u - format.bias) << 23));
    const float small = static_cast<float>(static_cast<std::int32_t>(code & 7u)) *
                        power_of_two(-static_cast<std::int32_t>(format.bias) - 2);
    return (code >> 3) == 0 ? small : normal;
}

// The largest magnitude. The bits of non-negative floats order as the floats do, with NaN above infinity: an
// integer maximum keeps NaN.
template <typename In>
OVERLAP_CLONES std::uint32_t largest_bits(const In* __restrict values, std::int64_t n) {
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        most = std::max(most, std::bit_cast<std::uint32_t>(widen(values[i])) & 0x7FFFFFFFu);
    }
    return most;
}

// The scale that lets a block reach `most_of_format`: a normal number, so that dividing by it does not
// overflow. NaN where the block holds a value that is not finite; its codes are then 0, and it reads as NaN.
template <typename In>
float block_scale(const In* values, std::int64_t count, float most_of_format) {
    constexpr float kSmallest = 0x1p-126f;
    const float most = std::bit_cast<float>(largest_bits(values, count));
    return std::isfinite(most) ? std::max(most / most_of_format, kSmallest)
                               : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace overlap
