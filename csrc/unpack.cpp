#include <algorithm>
#include <cstring>

#include "blocks.h"
#include "clones.h"
#include "ops.h"
#include "region.h"
#include "threads.h"

namespace overlap {
namespace {

template <typename In, typename Out>
OVERLAP_CLONES void scale_into(const In* __restrict in, float scale, Out* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) narrow(widen(in[i]) * scale, out[i]);
}

void move(const Bucket& bucket, std::int64_t place, DType out_dtype, void* out, std::int64_t count,
          float scale) {
    const void* in = at(bucket.dtype, bucket.data, place);
    if (bucket.dtype == out_dtype && scale == 1.0f) {  // bits move unchanged, NaN payloads too
        std::memcpy(out, in, static_cast<std::size_t>(count * item_size(out_dtype)));
        return;
    }
    visit_float(bucket.dtype, [&](auto in_type) {
        visit_float(out_dtype, [&](auto out_type) {
            scale_into(static_cast<const decltype(in_type)*>(in), scale,
                       static_cast<decltype(out_type)*>(out), count);
        });
    });
}

void move_strided(const Bucket& bucket, const Stretch& stretch, const Strided& tensor, float scale) {
    float scratch[kBlock];
    for (std::int64_t i = 0; i < stretch.held; i += kBlock) {
        const std::int64_t count = std::min(kBlock, stretch.held - i);
        move(bucket, stretch.place + i, DType::fp32, scratch, count, scale);
        scatter(tensor, stretch.source + i, count, scratch);
    }
}

}  // namespace

void unpack(const Bucket& bucket, const Strided* tensors, const Region* regions, std::int64_t region_count,
            float scale, int threads) {
    const auto fill = [&](const Stretch& stretch) {
        const std::int64_t index = stretch.region.tensor;
        if (index < 0 || tensors[index].data == nullptr || stretch.held == 0) return;
        const Strided& tensor = tensors[index];
        if (tensor.rank == 0) {
            move(bucket, stretch.place, tensor.dtype, at(tensor.dtype, tensor.data, stretch.source),
                 stretch.held, scale);
        } else {
            move_strided(bucket, stretch, tensor, scale);
        }
    };
    parallel_for(bucket.world * bucket.width, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for_each_stretch(regions, region_count, bucket.width, begin, end, fill);
    });
}

}  // namespace overlap
