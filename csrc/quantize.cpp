#include <algorithm>
#include <cmath>
#include <cstring>

#include "blocks.h"
#include "clones.h"
#include "minifloat.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

constexpr float kMaxInt8 = 127.0f;

template <typename In>
OVERLAP_CLONES void to_int8(const In* __restrict values, float scale, std::int8_t* __restrict out,
                            std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float clamped = std::clamp(widen(values[i]) / scale, -kMaxInt8, kMaxInt8);
        // Adding 1.5 * 2^23 leaves no fraction bits: the addition rounds half to even, in every vector width.
        out[i] = static_cast<std::int8_t>(static_cast<std::int32_t>((clamped + 0x1.8p23f) - 0x1.8p23f));
    }
}

template <typename In>
OVERLAP_CLONES void to_e4m3(const In* __restrict values, float scale, std::uint8_t* __restrict out,
                            std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float value = widen(values[i]);
        const std::uint32_t sign = (std::bit_cast<std::uint32_t>(value) >> 31) << 7;
        out[i] = static_cast<std::uint8_t>(sign | encode_nearest(std::fabs(value) / scale, kE4M3));
    }
}

template <typename Out, bool kAccumulate>
OVERLAP_CLONES void from_int8(const std::int8_t* __restrict codes, float scale, Out* __restrict out,
                              std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float value = static_cast<float>(codes[i]) * scale;
        narrow(kAccumulate ? widen(out[i]) + value : value, out[i]);
    }
}

template <typename Out, bool kAccumulate>
OVERLAP_CLONES void from_e4m3(const std::uint8_t* __restrict codes, float scale, Out* __restrict out,
                              std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t code = codes[i] & 0x7Fu, sign = (codes[i] & 0x80u) << 24;
        // The one NaN of e4m3fn: quantize never writes it, torch may.
        const std::uint32_t nan = code == 0x7Fu ? 0x7FC00000u : 0u;
        const float value =
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(decode(code, kE4M3)) | nan | sign) * scale;
        narrow(kAccumulate ? widen(out[i]) + value : value, out[i]);
    }
}

template <typename In>
float quantize_block(const In* values, DType payload_dtype, void* payload, std::int64_t count) {
    const bool is_int8 = payload_dtype == DType::int8;
    const float scale = block_scale(values, count, is_int8 ? kMaxInt8 : kMaxE4M3);
    if (!std::isfinite(scale)) {
        std::memset(payload, 0, static_cast<std::size_t>(count));
        return scale;
    }
    is_int8 ? to_int8(values, scale, static_cast<std::int8_t*>(payload), count)
            : to_e4m3(values, scale, static_cast<std::uint8_t*>(payload), count);
    return scale;
}

template <typename Out, bool kAccumulate>
void dequantize_block(DType payload_dtype, const void* payload, float scale, Out* out, std::int64_t count) {
    payload_dtype == DType::int8
        ? from_int8<Out, kAccumulate>(static_cast<const std::int8_t*>(payload), scale, out, count)
        : from_e4m3<Out, kAccumulate>(static_cast<const std::uint8_t*>(payload), scale, out, count);
}

}  // namespace

void quantize(DType dtype, const void* values, DType payload_dtype, void* payload, float* scales,
              std::int64_t size, std::int64_t block, int threads) {
    parallel_for(size, kGrain, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += block) {
            visit_float(dtype, [&](auto type) {
                const auto* in = static_cast<const decltype(type)*>(values) + i;
                scales[i / block] = quantize_block(in, payload_dtype, static_cast<char*>(payload) + i,
                                                   std::min(block, end - i));
            });
        }
    });
}

void dequantize(DType payload_dtype, const void* payload, const float* scales, DType dtype, void* out,
                std::int64_t size, std::int64_t block, bool accumulate, int threads) {
    parallel_for(size, kGrain, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += block) {
            const void* codes = static_cast<const char*>(payload) + i;
            const std::int64_t count = std::min(block, end - i);
            visit_float(dtype, [&](auto type) {
                using Out = decltype(type);
                auto* place = static_cast<Out*>(out) + i;
                accumulate
                    ? dequantize_block<Out, true>(payload_dtype, codes, scales[i / block], place, count)
                    : dequantize_block<Out, false>(payload_dtype, codes, scales[i / block], place, count);
            });
        }
    });
}

}  // namespace overlap
