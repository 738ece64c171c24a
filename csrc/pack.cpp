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

}  // namespace

void pack(const Strided* tensors, const Region* regions, std::int64_t region_count, const Bucket& bucket,
          float scale, bool accumulate, int threads) {
    const Target target{bucket, scale, accumulate};
    const auto fill = [&](const Stretch& stretch) {
        const std::int64_t index = stretch.region.tensor;
        const bool missing = index < 0 || tensors[index].data == nullptr;
        const std::int64_t held = missing ? 0 : stretch.held;
        if (held > 0) fill_held(target, tensors[index], stretch);
        if (!accumulate && held < stretch.span) target.clear(stretch.place + held, stretch.span - held);
    };
    parallel_for(bucket.world * bucket.width, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for_each_stretch(regions, region_count, bucket.width, begin, end, fill);
    });
}

}  // namespace overlap
