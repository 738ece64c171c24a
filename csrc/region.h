// Walks a range of bucket elements as stretches that lie in one row and one region (overlap/ops/slots.py).
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops.h"

namespace overlap {

struct Stretch {
    const Region& region;
    std::int64_t source;  // first element of the tensor
    std::int64_t place;   // first element of the bucket
    std::int64_t held;    // elements that belong to the tensor; may be 0
    std::int64_t span;    // elements in all: behind the held ones lies padding
};

// Calls body(stretch) for everything in bucket elements [begin, end). Regions tile a row in column order.
template <typename Body>
void for_each_stretch(const Region* regions, std::int64_t count, std::int64_t width, std::int64_t begin,
                      std::int64_t end, const Body& body) {
    for (std::int64_t row = begin / width; row * width < end; ++row) {
        const std::int64_t low = std::max<std::int64_t>(begin - row * width, 0);
        const std::int64_t high = std::min(end - row * width, width);
        // Binary search: a bucket of many small tensors is cut into many ranges.
        const Region* region =
            std::upper_bound(regions, regions + count, low,
                             [](std::int64_t column, const Region& r) { return column < r.end; });
        for (; region != regions + count && region->offset < high; ++region) {
            const std::int64_t from = std::max(low, region->offset), to = std::min(high, region->end);
            const std::int64_t first = row * region->chunk;
            const std::int64_t data = std::clamp<std::int64_t>(region->numel - first, 0, region->chunk);
            const std::int64_t held = std::clamp<std::int64_t>(region->offset + data - from, 0, to - from);
            if (from < to)
                body(Stretch{*region, first + from - region->offset, row * width + from, held, to - from});
        }
    }
}

}  // namespace overlap
