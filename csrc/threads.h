// A parallel loop over a pool of threads that joins at exit and starts afresh in a forked child.
#pragma once

#include <cstdint>

namespace overlap {

// Elements that a thread takes at a time; below it a second thread costs more than it saves.
inline constexpr std::int64_t kGrain = 1 << 16;

// A reference to a callable body(begin, end): no allocation, unlike std::function.
class RangeBody {
  public:
    template <typename Body>
    RangeBody(const Body& body)  // NOLINT: implicit, so that a lambda can be passed
        : object_(&body), call_([](const void* object, std::int64_t begin, std::int64_t end) {
              (*static_cast<const Body*>(object))(begin, end);
          }) {}
    void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

  private:
    const void* object_;
    void (*call_)(const void*, std::int64_t, std::int64_t);
};

// Calls body(begin, end) on disjoint ranges that cover [0, count), cut at multiples of `grain`, on at most
// `threads` threads including the caller's. Threads take ranges as they come free, so a thread that the
// system stops for a while delays one range and not half of the work. `body` must not throw.
void parallel_for(std::int64_t count, std::int64_t grain, int threads, RangeBody body);

}  // namespace overlap
