#include "rounding.h"

#include "clones.h"

namespace overlap {
namespace {

OVERLAP_CLONES void round_up_or_down(const float* __restrict values, const std::uint16_t* __restrict random,
                                     Bf16* __restrict out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        // Read whether used or not: AVX2 has no masked load of 16 bits.
        const std::uint32_t carry = random[i];
        const std::uint32_t rounded = bits + ((bits & 0x7F800000u) != 0x7F800000u ? carry : 0u);
        const std::uint32_t quiet = (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x400000u : 0u;
        out[i].bits = static_cast<std::uint16_t>((rounded | quiet) >> 16);
    }
}

}  // namespace

void narrow_stochastic(const float* values, const std::uint16_t* random, Bf16* out, std::int64_t count) {
    round_up_or_down(values, random, out, count);
}

}  // namespace overlap
