// The CPU ops, one per .cpp of the same stem. Pointers need only element alignment; overlap/ops/dispatch.py
// has checked shapes and devices. Same float operations, in the same order, as overlap/ops/reference.py.
#pragma once

#include <cstdint>

#include "convert.h"

namespace overlap {

// Columns [offset, end) of each bucket row; the gradient fills the front of them, `chunk` elements per row.
struct Region {
    std::int64_t offset, end, chunk, numel;
};

// A region's gradient; null where there is none.
struct Source {
    const void* values;
    DType dtype;
};

struct PackJob {
    const Region* regions;
    const Source* sources;
    std::int64_t region_count;
    void* bucket;
    DType dtype;
    std::int64_t world, width;
    float scale;
    bool accumulate;
};

// overlap/ops/coefficients.py, rounded to float.
struct AdamWCoefficients {
    float decay, blend1, beta2, blend2, root_correction2, eps, step_size;
};

void pack(const PackJob& job, int threads);

void adamw(float* master, float* exp_avg, float* exp_avg_sq, DType grad_dtype, const void* grad,
           DType shard_dtype, void* shard, std::int64_t size, const AdamWCoefficients& coefficients,
           float grad_factor, int threads);

// out = [sum of squares, 1 where an element is not finite], or combined with what `out` holds.
void grad_norm(DType dtype, const void* grad, std::int64_t size, double* out, bool accumulate, int threads);

void reduce_sum(DType row_dtype, const void* const* rows, std::int64_t row_count, DType out_dtype, void* out,
                std::int64_t size, float scale, bool accumulate, int threads);

}  // namespace overlap
