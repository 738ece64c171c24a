// The element types of the ops, and conversion of one value. Loops over them are templates: one plain loop
// per op, instantiated per pair of types.
#pragma once

#include <bit>
#include <cstdint>

namespace overlap {

enum class DType : std::int64_t {
    fp32 = 0,
    bf16 = 1,
    fp16 = 2,
    fp64 = 3,
    int8 = 4,
    uint8 = 5,
    e4m3 = 6,
    int32 = 7,
    boolean = 8
};

struct Bf16 {
    std::uint16_t bits;
};
struct Fp16 {
    std::uint16_t bits;
};

inline std::int64_t item_size(DType dtype) {
    switch (dtype) {
        case DType::fp64:
            return 8;
        case DType::fp32:
        case DType::int32:
            return 4;
        case DType::bf16:
        case DType::fp16:
            return 2;
        default:
            return 1;
    }
}

inline bool is_float(DType dtype) { return dtype <= DType::fp16; }

inline float widen(float value) { return value; }

inline float widen(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

// Integer arithmetic throughout, so that it vectorises without F16C and ignores flush-to-zero modes.
inline float widen(Fp16 value) {
    constexpr float kSmallestNormal = 0x1p-14f;
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t shifted = static_cast<std::uint32_t>(value.bits & 0x7FFFu) << 13;
    const std::uint32_t exponent = shifted & 0x0F800000u;
    const std::uint32_t normal = shifted + 0x38000000u;
    const std::uint32_t non_finite = normal + 0x38000000u;
    const float renormalised = std::bit_cast<float>(normal + 0x00800000u) - kSmallestNormal;
    const std::uint32_t magnitude = exponent == 0x0F800000u ? non_finite
                                    : exponent == 0         ? std::bit_cast<std::uint32_t>(renormalised)
                                                            : normal;
    return std::bit_cast<float>(sign | magnitude);
}

inline void narrow(float value, float& out) { out = value; }

inline void narrow(float value, Bf16& out) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    const std::uint32_t quiet_nan = bits | 0x400000u;
    out.bits = static_cast<std::uint16_t>((value != value ? quiet_nan : rounded) >> 16);
}

inline void narrow(float value, Fp16& out) {
    constexpr std::uint32_t kOverflow = 0x47800000u;         // 2^16: all above is infinity or NaN
    constexpr std::uint32_t kSmallestNormal = 0x38800000u;   // 2^-14
    constexpr std::uint32_t kSubnormalAnchor = 0x3F000000u;  // 0.5: adding it aligns the last fp16 bit
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t non_finite = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    const float anchored = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kSubnormalAnchor);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(anchored) - kSubnormalAnchor;
    // Rebias the exponent (15 - 127) and round to nearest even in one addition.
    const std::uint32_t normal = (magnitude + 0xC8000FFFu + ((magnitude >> 13) & 1u)) >> 13;
    const std::uint32_t half = magnitude >= kOverflow        ? non_finite
                               : magnitude < kSmallestNormal ? subnormal
                                                             : normal;
    out.bits = static_cast<std::uint16_t>(sign | half);
}

// Calls body(T{}) with the type of a float dtype.
template <typename Body>
inline void visit_float(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::bf16:
            return body(Bf16{});
        case DType::fp16:
            return body(Fp16{});
        default:
            return body(float{});
    }
}

// Where element `index` of an array of `dtype` starts.
inline void* at(DType dtype, void* base, std::int64_t index) {
    return static_cast<char*>(base) + index * item_size(dtype);
}
inline const void* at(DType dtype, const void* base, std::int64_t index) {
    return static_cast<const char*>(base) + index * item_size(dtype);
}

}  // namespace overlap
