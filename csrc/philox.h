// Random bits of an element: they depend on the seed, the step and its global index, never on threads, blocks
// or the number of ranks. overlap/ops/reference/philox.py defines them.
#pragma once

#include <cstdint>

namespace overlap {

struct Rounding {
    bool stochastic = false;
    std::uint64_t seed = 0;
    std::int64_t start = 0;  // global index of element 0, a multiple of kPerPhilox
    std::uint32_t step = 0;
};

// One Philox call gives 128 bits: 16 for each of 8 neighbours.
inline constexpr std::int64_t kPerPhilox = 8;

// 16 random bits for each of `count` elements from local index `index` (a multiple of 8); `bits` has room for
// `count` rounded up to a multiple of 8. Streams 0, 1 and 2 belong to the weights and the two moments.
void random_bits(const Rounding& rounding, std::uint32_t stream, std::int64_t index, std::int64_t count,
                 std::uint16_t* bits);

}  // namespace overlap
