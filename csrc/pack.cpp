#include <algorithm>
#include <cstring>

#include "clones.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

OVERLAP_CLONES void scale_into(const float* __restrict in, float scale, float* __restrict out,
                               std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = in[i] * scale;
}

OVERLAP_CLONES void scale_onto(const float* __restrict in, float scale, float* __restrict out,
                               std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = out[i] + in[i] * scale;
}

// `to` indexes the whole bucket, `from` the flattened gradient; count <= kBlock.
void copy_block(const PackJob& job, const Source& source, std::int64_t from, std::int64_t to,
                std::int64_t count) {
    float in_scratch[kBlock], out_scratch[kBlock];
    const float* in = widen(source.dtype, source.values, from, count, in_scratch);
    float* out = out_scratch;
    if (job.dtype == DType::fp32) out = static_cast<float*>(job.bucket) + to;
    if (job.accumulate) {
        widen(job.dtype, job.bucket, to, count, out_scratch);
        scale_onto(in, job.scale, out, count);
    } else {
        scale_into(in, job.scale, out, count);
    }
    narrow(job.dtype, out, job.bucket, to, count);
}

// Columns [begin, end) of one row inside one region: gradient first, then zeros (left alone by accumulate).
void fill_region(const PackJob& job, std::int64_t row, std::int64_t region_index, std::int64_t begin,
                 std::int64_t end) {
    const Region& region = job.regions[region_index];
    const Source& source = job.sources[region_index];
    const std::int64_t first = row * region.chunk;
    const std::int64_t held =
        source.values == nullptr ? 0 : std::clamp<std::int64_t>(region.numel - first, 0, region.chunk);
    const std::int64_t data_end = std::min(end, region.offset + held);
    for (std::int64_t column = begin; column < data_end; column += kBlock) {
        const std::int64_t count = std::min(kBlock, data_end - column);
        copy_block(job, source, first + column - region.offset, row * job.width + column, count);
    }
    const std::int64_t gap = std::max(begin, data_end);
    if (job.accumulate || gap >= end) return;
    char* gap_begin = static_cast<char*>(at(job.dtype, job.bucket, row * job.width + gap));
    char* gap_end = static_cast<char*>(at(job.dtype, job.bucket, row * job.width + end));
    std::memset(gap_begin, 0, static_cast<std::size_t>(gap_end - gap_begin));
}

}  // namespace

void pack(const PackJob& job, int threads) {
    parallel_for(job.world * job.width, kGrain, threads, [&job](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin / job.width; row * job.width < end; ++row) {
            const std::int64_t low = std::max<std::int64_t>(begin - row * job.width, 0);
            const std::int64_t high = std::min(end - row * job.width, job.width);
            for (std::int64_t index = 0; index < job.region_count; ++index) {
                const Region& region = job.regions[index];
                fill_region(job, row, index, std::max(low, region.offset), std::min(high, region.end));
            }
        }
    });
}

}  // namespace overlap
