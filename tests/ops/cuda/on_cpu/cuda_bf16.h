// bfloat16 for tests on a CPU: round to nearest even, NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
    const std::uint32_t wide = static_cast<std::uint32_t>(value.bits) << 16;
    float result;
    std::memcpy(&result, &wide, sizeof(result));
    return result;
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (value != value) return {0x7FFF};  // what the GPU's instruction makes of every NaN
    return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}
