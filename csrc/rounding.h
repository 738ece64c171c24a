// Stochastic rounding and 8-bit floats, as overlap/ops/reference/rounding.py defines them: the random bits of
// an element depend on the seed, the step and its global index, never on threads, blocks or the number of
// ranks.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "dtype.h"

namespace overlap {

struct Rounding {
    bool stochastic = false;
    std::uint64_t seed = 0;
    std::int64_t start = 0;  // global index of element 0, a multiple of 8
    std::uint32_t step = 0;
};

// One Philox call gives 128 bits: 16 for each of 8 neighbours.
inline constexpr std::int64_t kPerPhilox = 8;

// 16 random bits for each of `count` elements from local index `index` (a multiple of 8); `bits` has room for
// `count` rounded up to a multiple of 8.
void random_bits(const Rounding& rounding, std::uint32_t stream, std::int64_t index, std::int64_t count,
                 std::uint16_t* bits);

// Rounds floats up or down to bf16 with probability proportional to the distance; random: 16 bits each.
void narrow_stochastic(const float* values, const std::uint16_t* random, Bf16* out, std::int64_t count);

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

}  // namespace overlap
