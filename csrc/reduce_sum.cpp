#include <algorithm>

#include "blocks.h"
#include "clones.h"
#include "norm_tile.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

// Rows taken in one loop: more pointers than this run out of registers and of prefetch streams.
constexpr std::int64_t kGroup = 4;

// sum = [sum +] rows[0] + rows[1] + ..., in this order.
template <int kRows, bool kContinues, typename Row>
OVERLAP_CLONES void add_rows(const Row* const* rows, float* __restrict sum, std::int64_t n) {
    const Row* row[kRows];
    for (int k = 0; k < kRows; ++k) row[k] = rows[k];
    for (std::int64_t i = 0; i < n; ++i) {
        float total = kContinues ? sum[i] + widen(row[0][i]) : widen(row[0][i]);
        for (int k = 1; k < kRows; ++k) total = total + widen(row[k][i]);
        sum[i] = total;
    }
}

template <bool kContinues, typename Row>
void add_group(const Row* const* rows, std::int64_t count, float* sum, std::int64_t n) {
    switch (count) {
        case 1:
            return add_rows<1, kContinues>(rows, sum, n);
        case 2:
            return add_rows<2, kContinues>(rows, sum, n);
        case 3:
            return add_rows<3, kContinues>(rows, sum, n);
        default:
            return add_rows<4, kContinues>(rows, sum, n);
    }
}

// `sum` may be `out` itself, so neither is __restrict; ivdep: no element depends on another.
template <typename Out>
OVERLAP_CLONES void finish(const float* sum, float scale, Out* out, std::int64_t n) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) narrow(sum[i] * scale, out[i]);
}

template <typename Out>
OVERLAP_CLONES void finish_onto(const float* sum, float scale, Out* out, std::int64_t n) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) narrow(widen(out[i]) + sum[i] * scale, out[i]);
}

// Two rows, the exchange of two ranks, in one loop. `out` may be a row.
template <bool kAccumulate, typename Row, typename Out>
OVERLAP_CLONES void reduce_pair(const Row* a, const Row* b, float scale, Out* out, std::int64_t n) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
        const float sum = (widen(a[i]) + widen(b[i])) * scale;
        narrow(kAccumulate ? widen(out[i]) + sum : sum, out[i]);
    }
}

struct Job {
    DType row_dtype;
    const void* const* rows;
    std::int64_t row_count;
    DType out_dtype;
    void* out;
    float scale;
    bool accumulate;
};

const float* sum_rows(const Job& job, std::int64_t index, std::int64_t count, float* sum) {
    if (job.row_count == 1) return widen(job.row_dtype, job.rows[0], index, count, sum);
    visit_float(job.row_dtype, [&](auto type) {
        using Row = decltype(type);
        for (std::int64_t first = 0; first < job.row_count; first += kGroup) {
            const Row* group[kGroup];
            const std::int64_t rows = std::min(kGroup, job.row_count - first);
            for (std::int64_t k = 0; k < rows; ++k)
                group[k] = static_cast<const Row*>(job.rows[first + k]) + index;
            first == 0 ? add_group<false>(group, rows, sum, count) : add_group<true>(group, rows, sum, count);
        }
    });
    return sum;
}

template <typename Out>
bool pair_block(const Job& job, Out* out, std::int64_t index, std::int64_t count) {
    if (job.row_count != 2) return false;
    visit_float(job.row_dtype, [&](auto type) {
        using Row = decltype(type);
        const auto *a = static_cast<const Row*>(job.rows[0]) + index,
                   *b = static_cast<const Row*>(job.rows[1]) + index;
        job.accumulate ? reduce_pair<true>(a, b, job.scale, out, count)
                       : reduce_pair<false>(a, b, job.scale, out, count);
    });
    return true;
}

// `out` may be one of the rows: a block is summed aside and written once every row of it has been read.
void reduce_block(const Job& job, std::int64_t index, std::int64_t count) {
    float scratch[kBlock];
    visit_float(job.out_dtype, [&](auto type) {
        auto* out = static_cast<decltype(type)*>(job.out) + index;
        if (pair_block(job, out, index, count)) return;
        const float* sum = sum_rows(job, index, count, scratch);
        job.accumulate ? finish_onto(sum, job.scale, out, count) : finish(sum, job.scale, out, count);
    });
}

}  // namespace

void reduce_sum(DType row_dtype, const void* const* rows, std::int64_t row_count, DType out_dtype, void* out,
                std::int64_t size, float scale, bool accumulate, double* norm, int threads) {
    const Job job{row_dtype, rows, row_count, out_dtype, out, scale, accumulate};
    const std::int64_t tiles = (size + kTile - 1) / kTile;
    double* sums = norm == nullptr ? nullptr : tile_sums(tiles);
    parallel_for(tiles, kGrain / kTile, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
            NormTile squares;
            const std::int64_t tile_end = std::min((tile + 1) * kTile, size);
            for (std::int64_t i = tile * kTile; i < tile_end; i += kBlock) {
                const std::int64_t count = std::min(kBlock, tile_end - i);
                reduce_block(job, i, count);
                if (sums != nullptr) squares.add(out_dtype, at(out_dtype, out, i), count);  // still in L1
            }
            if (sums != nullptr) sums[tile] = squares.sum();
        }
    });
    if (norm != nullptr) finish_norm(sums, tiles, norm, true);
}

}  // namespace overlap
