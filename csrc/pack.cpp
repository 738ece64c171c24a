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

template <typename In, typename Out>
OVERLAP_CLONES void scale_onto(const In* __restrict in, float scale, Out* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) narrow(widen(out[i]) + widen(in[i]) * scale, out[i]);
}

void move(DType in_dtype, const void* in, const Bucket& bucket, std::int64_t place, std::int64_t count,
          float scale, bool accumulate) {
    void* out = at(bucket.dtype, bucket.data, place);
    if (in_dtype == bucket.dtype && scale == 1.0f && !accumulate) {
        std::memcpy(out, in, static_cast<std::size_t>(count * item_size(in_dtype)));
        return;
    }
    visit_float(in_dtype, [&](auto in_type) {
        visit_float(bucket.dtype, [&](auto out_type) {
            const auto* from = static_cast<const decltype(in_type)*>(in);
            auto* to = static_cast<decltype(out_type)*>(out);
            accumulate ? scale_onto(from, scale, to, count) : scale_into(from, scale, to, count);
        });
    });
}

void move_strided(const Strided& tensor, const Stretch& stretch, const Bucket& bucket, float scale,
                  bool accumulate) {
    float scratch[kBlock];
    for (std::int64_t i = 0; i < stretch.held; i += kBlock) {
        const std::int64_t count = std::min(kBlock, stretch.held - i);
        gather(tensor, stretch.source + i, count, scratch);
        move(DType::fp32, scratch, bucket, stretch.place + i, count, scale, accumulate);
    }
}

void clear(const Bucket& bucket, std::int64_t place, std::int64_t count) {
    std::memset(at(bucket.dtype, bucket.data, place), 0,
                static_cast<std::size_t>(count * item_size(bucket.dtype)));
}

}  // namespace

void pack(const Strided* tensors, const Region* regions, std::int64_t region_count, const Bucket& bucket,
          float scale, bool accumulate, int threads) {
    const auto fill = [&](const Stretch& stretch) {
        const std::int64_t index = stretch.region.tensor;
        const Strided* tensor = index < 0 || tensors[index].data == nullptr ? nullptr : &tensors[index];
        const std::int64_t held = tensor == nullptr ? 0 : stretch.held;
        if (held > 0 && tensor->rank == 0) {
            move(tensor->dtype, at(tensor->dtype, tensor->data, stretch.source), bucket, stretch.place, held,
                 scale, accumulate);
        } else if (held > 0) {
            move_strided(*tensor, stretch, bucket, scale, accumulate);
        }
        if (!accumulate && held < stretch.span) clear(bucket, stretch.place + held, stretch.span - held);
    };
    parallel_for(bucket.world * bucket.width, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for_each_stretch(regions, region_count, bucket.width, begin, end, fill);
    });
}

}  // namespace overlap
