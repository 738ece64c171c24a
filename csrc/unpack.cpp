#include <algorithm>

#include "blocks.h"
#include "move.h"
#include "ops.h"
#include "region.h"
#include "threads.h"

namespace overlap {
namespace {

void take_held(const Bucket& bucket, const Stretch& stretch, const Strided& tensor, float scale) {
    const void* in = at(bucket.dtype, bucket.data, stretch.place);
    if (tensor.rank == 0) {
        void* out = at(tensor.dtype, tensor.data, stretch.source);
        return move(bucket.dtype, in, tensor.dtype, out, stretch.held, scale);
    }
    float scratch[kBlock];
    for (std::int64_t i = 0; i < stretch.held; i += kBlock) {
        const std::int64_t count = std::min(kBlock, stretch.held - i);
        move(bucket.dtype, at(bucket.dtype, bucket.data, stretch.place + i), tensor.dtype, scratch, count,
             scale);
        scatter(tensor, stretch.source + i, count, scratch);
    }
}

}  // namespace

void unpack(const Bucket& bucket, const Strided* tensors, const Region* regions, std::int64_t region_count,
            float scale, int threads) {
    const auto take = [&](const Stretch& stretch) {
        const std::int64_t index = stretch.region.tensor;
        const bool wanted = index >= 0 && tensors[index].data != nullptr;
        if (wanted && stretch.held > 0) take_held(bucket, stretch, tensors[index], scale);
    };
    parallel_for(bucket.world * bucket.width, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for_each_stretch(regions, region_count, bucket.width, begin, end, take);
    });
}

}  // namespace overlap
