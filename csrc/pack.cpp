#include <algorithm>
#include <cstring>

#include "blocks.h"
#include "move.h"
#include "ops.h"
#include "region.h"
#include "threads.h"

namespace overlap {
namespace {

struct Target {
    const Bucket& bucket;
    float scale;
    bool accumulate;

    void fill(std::int64_t place, DType dtype, const void* values, std::int64_t count) const {
        void* out = at(bucket.dtype, bucket.data, place);
        const auto copy = accumulate ? move_onto : move;
        copy(dtype, values, bucket.dtype, out, count, scale);
    }

    void clear(std::int64_t place, std::int64_t count) const {
        std::memset(at(bucket.dtype, bucket.data, place), 0,
                    static_cast<std::size_t>(count * item_size(bucket.dtype)));
    }
};

void fill_held(const Target& target, const Strided& tensor, const Stretch& stretch) {
    if (tensor.rank == 0) {
        return target.fill(stretch.place, tensor.dtype, at(tensor.dtype, tensor.data, stretch.source),
                           stretch.held);
    }
    float scratch[kBlock];
    for (std::int64_t i = 0; i < stretch.held; i += kBlock) {
        const std::int64_t count = std::min(kBlock, stretch.held - i);
        gather(tensor, stretch.source + i, count, scratch);
        target.fill(stretch.place + i, tensor.dtype, scratch, count);
    }
}

// Elements per region and row, on average, below which rows are too short to walk one by one.
constexpr std::int64_t kNarrow = 64;

bool is_narrow(const Bucket& bucket, std::int64_t region_count) {
    return bucket.world > 1 && bucket.width > 0 && bucket.width < region_count * kNarrow;
}

// One region in rows [begin, end): those that the tensor fills at once, then the one it ends in, then zeros.
void fill_column(const Target& target, const Strided* tensor, const Region& region, std::int64_t begin,
                 std::int64_t end) {
    const Bucket& bucket = target.bucket;
    const auto place = [&](std::int64_t row) { return row * bucket.width + region.offset; };
    const auto spot = [&](std::int64_t row, std::int64_t column) {
        return at(bucket.dtype, bucket.data, place(row) + column);
    };
    const std::int64_t span = region.end - region.offset, numel = tensor == nullptr ? 0 : region.numel;
    const std::int64_t full =
        numel == 0 ? begin : std::clamp<std::int64_t>(numel / region.chunk, begin, end);
    const auto source = [&](std::int64_t row) {
        return at(tensor->dtype, tensor->data, row * region.chunk);
    };
    if (full > begin) {
        if (region.chunk < kNarrow) {
            move_rows(tensor->dtype, source(begin), bucket.dtype, spot(begin, 0), full - begin, region.chunk,
                      bucket.width, target.scale, target.accumulate);
        } else {
            for (std::int64_t row = begin; row < full; ++row)
                target.fill(place(row), tensor->dtype, source(row), region.chunk);
        }
        if (!target.accumulate)
            clear_rows(bucket.dtype, spot(begin, region.chunk), full - begin, span - region.chunk, bucket.width);
    }
    std::int64_t row = full;
    const std::int64_t held = row < end ? std::max<std::int64_t>(numel - row * region.chunk, 0) : 0;
    if (held > 0) {
        target.fill(place(row), tensor->dtype, source(row), held);
        if (!target.accumulate) target.clear(place(row) + held, span - held);
        ++row;
    }
    if (!target.accumulate && row < end) clear_rows(bucket.dtype, spot(row, 0), end - row, span, bucket.width);
}

}  // namespace

void pack(const Strided* tensors, const Region* regions, std::int64_t region_count, const Bucket& bucket,
          float scale, bool accumulate, int threads) {
    const Target target{bucket, scale, accumulate};
    const auto tensor_of = [&](const Region& region) -> const Strided* {
        return region.tensor < 0 || tensors[region.tensor].data == nullptr ? nullptr : tensors + region.tensor;
    };
    const auto lies_in_a_row = [&](const Region& region) {
        const Strided* tensor = tensor_of(region);
        return tensor == nullptr || tensor->rank == 0;
    };
    if (is_narrow(bucket, region_count) && std::all_of(regions, regions + region_count, lies_in_a_row)) {
        const std::int64_t grain = std::max<std::int64_t>(kGrain / bucket.width, 1);
        return parallel_for(bucket.world, grain, threads, [&](std::int64_t begin, std::int64_t end) {
            for (const Region* region = regions; region != regions + region_count; ++region)
                fill_column(target, tensor_of(*region), *region, begin, end);
        });
    }
    const auto fill = [&](const Stretch& stretch) {
        const Strided* tensor = tensor_of(stretch.region);
        const std::int64_t held = tensor == nullptr ? 0 : stretch.held;
        if (held > 0) fill_held(target, *tensor, stretch);
        if (!accumulate && held < stretch.span) target.clear(stretch.place + held, stretch.span - held);
    };
    parallel_for(bucket.world * bucket.width, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for_each_stretch(regions, region_count, bucket.width, begin, end, fill);
    });
}

}  // namespace overlap
