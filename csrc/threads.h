// A parallel loop that leaves nothing behind.
#pragma once

#include <cstdint>
#include <functional>

namespace overlap {

// Elements below which a second thread costs more than it saves (starting one takes about 20 us).
inline constexpr std::int64_t kGrain = 1 << 16;

// Calls body(begin, end) on disjoint ranges that cover [0, count), cut at multiples of `grain`, on at most
// `threads` threads including the caller's. `body` must not throw.
void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace overlap
