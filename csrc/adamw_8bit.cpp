#include <algorithm>
#include <cmath>

#include "adamw_rule.h"
#include "clones.h"
#include "minifloat.h"
#include "philox.h"
#include "update.h"

namespace overlap {
namespace {

OVERLAP_CLONES void decode_signed(const std::uint8_t* __restrict codes, float scale, float* __restrict out,
                                  std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t sign = (codes[i] & 0x80u) << 24;
        out[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(decode(codes[i] & 0x7Fu, kE4M3)) | sign) *
                 scale;
    }
}

OVERLAP_CLONES void decode_unsigned(const std::uint8_t* __restrict codes, float scale, float* __restrict out,
                                    std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = decode(codes[i], kUE5M3) * scale;
}

OVERLAP_CLONES void encode_signed(const float* __restrict values, const std::uint16_t* __restrict random,
                                  float scale, std::uint8_t* __restrict codes, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t sign = (std::bit_cast<std::uint32_t>(values[i]) >> 31) << 7;
        codes[i] = static_cast<std::uint8_t>(
            sign | encode_stochastic(std::fabs(values[i]) / scale, random[i], kE4M3));
    }
}

OVERLAP_CLONES void encode_unsigned(const float* __restrict values, const std::uint16_t* __restrict random,
                                    float scale, std::uint8_t* __restrict codes, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        codes[i] = static_cast<std::uint8_t>(encode_stochastic(values[i] / scale, random[i], kUE5M3));
    }
}

struct Moment {
    std::uint8_t* codes;
    float* scale;
    std::uint32_t stream;
};

template <typename Encode>
void store(const Update& update, const Moment& moment, const float* values, std::int64_t index,
           std::int64_t count, float most_of_format, const Encode& encode) {
    *moment.scale = block_scale(values, count, most_of_format);
    if (!std::isfinite(*moment.scale)) {
        std::fill_n(moment.codes, count, std::uint8_t{0});
        return;
    }
    alignas(32) std::uint16_t random[kMomentBlock];
    random_bits(update.rounding, moment.stream, index, count, random);
    encode(values, random, *moment.scale, moment.codes, count);
}

void update_moments(const Update& update, std::int64_t index, std::int64_t count, const Moment& first,
                    const Moment& second, const AdamWCoefficients& coefficients) {
    float exp_avg[kMomentBlock], exp_avg_sq[kMomentBlock];
    decode_signed(first.codes, *first.scale, exp_avg, count);
    decode_unsigned(second.codes, *second.scale, exp_avg_sq, count);
    float* const states[] = {static_cast<float*>(update.states[0].data) + index, exp_avg, exp_avg_sq};
    update_span(update, AdamWRule{coefficients, update.grad_factor}, states, index, count);
    store(update, first, exp_avg, index, count, kMaxE4M3, encode_signed);
    store(update, second, exp_avg_sq, index, count, kMaxUE5M3, encode_unsigned);
}

}  // namespace

void adamw_8bit(const Update& update, float* exp_avg_scale, float* exp_avg_sq_scale,
                const AdamWCoefficients& coefficients, int threads) {
    parallel_for(update.size, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += kMomentBlock) {
            const std::int64_t block = i / kMomentBlock;
            const Moment first{static_cast<std::uint8_t*>(update.states[1].data) + i, exp_avg_scale + block,
                               1};
            const Moment second{static_cast<std::uint8_t*>(update.states[2].data) + i,
                                exp_avg_sq_scale + block, 2};
            update_moments(update, i, std::min(kMomentBlock, end - i), first, second, coefficients);
        }
    });
}

}  // namespace overlap
