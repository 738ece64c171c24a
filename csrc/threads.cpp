#include "threads.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace overlap {

// Threads are started and joined inside the call instead of kept in a pool: nothing to join at exit, nothing
// that a fork could leave without its threads, and large ops (milliseconds) do not notice the start.
void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
    if (count <= 0) return;
    const std::int64_t grains = (count + grain - 1) / grain;
    const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, grains);
    const std::int64_t step = (grains + parts - 1) / parts * grain;
    std::vector<std::thread> workers;
    workers.reserve(static_cast<std::size_t>(parts));
    for (std::int64_t begin = step; begin < count; begin += step) {
        const std::int64_t end = std::min(begin + step, count);
        try {
            workers.emplace_back([&body, begin, end] { body(begin, end); });
        } catch (const std::system_error&) {
            body(begin, end);  // no thread to be had: slower, not wrong
        }
    }
    body(0, std::min(step, count));
    for (auto& worker : workers) worker.join();
}

}  // namespace overlap
