#include "convert.h"

#include <bit>
#include <cstring>

#include "check.h"
#include "clones.h"

namespace overlap {
namespace {

inline float bf16_to_float(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    const std::uint32_t quiet_nan = bits | 0x400000u;
    return static_cast<std::uint16_t>((value != value ? quiet_nan : rounded) >> 16);
}

// Integer arithmetic throughout, so that it vectorises without F16C and ignores flush-to-zero modes.
inline float fp16_to_float(std::uint16_t half) {
    constexpr float kSmallestNormal = 0x1p-14f;
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t shifted = static_cast<std::uint32_t>(half & 0x7FFFu) << 13;
    const std::uint32_t exponent = shifted & 0x0F800000u;
    const std::uint32_t normal = shifted + 0x38000000u;
    const std::uint32_t non_finite = normal + 0x38000000u;
    const float renormalised = std::bit_cast<float>(normal + 0x00800000u) - kSmallestNormal;
    const std::uint32_t magnitude = exponent == 0x0F800000u ? non_finite
                                    : exponent == 0         ? std::bit_cast<std::uint32_t>(renormalised)
                                                            : normal;
    return std::bit_cast<float>(sign | magnitude);
}

inline std::uint16_t float_to_fp16(float value) {
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
    return static_cast<std::uint16_t>(sign | half);
}

OVERLAP_CLONES void widen_bf16(const std::uint16_t* __restrict in, float* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(in[i]);
}

OVERLAP_CLONES void widen_fp16(const std::uint16_t* __restrict in, float* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = fp16_to_float(in[i]);
}

OVERLAP_CLONES void narrow_bf16(const float* __restrict in, std::uint16_t* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = float_to_bf16(in[i]);
}

OVERLAP_CLONES void narrow_fp16(const float* __restrict in, std::uint16_t* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = float_to_fp16(in[i]);
}

std::int64_t item_size(DType dtype) { return dtype == DType::fp32 ? 4 : 2; }

}  // namespace

DType checked_dtype(std::int64_t code) {
    require(code >= 0 && code <= 2, "dtype code", "be 0 (fp32), 1 (bf16) or 2 (fp16)", code,
            "take it from overlap/ops/native.py");
    return static_cast<DType>(code);
}

void* at(DType dtype, void* base, std::int64_t index) {
    return static_cast<char*>(base) + index * item_size(dtype);
}

const void* at(DType dtype, const void* base, std::int64_t index) {
    return static_cast<const char*>(base) + index * item_size(dtype);
}

const float* widen(DType dtype, const void* base, std::int64_t index, std::int64_t count, float* scratch) {
    const void* start = at(dtype, base, index);
    if (dtype == DType::fp32) return static_cast<const float*>(start);
    const auto* halves = static_cast<const std::uint16_t*>(start);
    dtype == DType::bf16 ? widen_bf16(halves, scratch, count) : widen_fp16(halves, scratch, count);
    return scratch;
}

void narrow(DType dtype, const float* values, void* base, std::int64_t index, std::int64_t count) {
    void* start = at(dtype, base, index);
    if (dtype == DType::fp32) {
        if (start != values) std::memcpy(start, values, static_cast<std::size_t>(count) * sizeof(float));
        return;
    }
    auto* halves = static_cast<std::uint16_t*>(start);
    dtype == DType::bf16 ? narrow_bf16(values, halves, count) : narrow_fp16(values, halves, count);
}

}  // namespace overlap
