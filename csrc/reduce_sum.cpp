#include <algorithm>
#include <cstring>

#include "clones.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

OVERLAP_CLONES void add(const float* __restrict in, float* __restrict sum, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] = sum[i] + in[i];
}

OVERLAP_CLONES void multiply(float* __restrict sum, float scale, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] = sum[i] * scale;
}

}  // namespace

void reduce_sum(DType row_dtype, const void* const* rows, std::int64_t row_count, DType out_dtype, void* out,
                std::int64_t size, float scale, bool accumulate, int threads) {
    parallel_for(size, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        // `out` may be one of the rows: the block is summed here and written once every row has been read.
        float sum[kBlock], scratch[kBlock];
        for (std::int64_t i = begin; i < end; i += kBlock) {
            const std::int64_t count = std::min(kBlock, end - i);
            const float* first = widen(row_dtype, rows[0], i, count, scratch);
            std::memcpy(sum, first, static_cast<std::size_t>(count) * sizeof(float));
            for (std::int64_t k = 1; k < row_count; ++k) {
                add(widen(row_dtype, rows[k], i, count, scratch), sum, count);
            }
            if (scale != 1.0f) multiply(sum, scale, count);
            if (accumulate) add(widen(out_dtype, out, i, count, scratch), sum, count);
            narrow(out_dtype, sum, out, i, count);
        }
    });
}

}  // namespace overlap
