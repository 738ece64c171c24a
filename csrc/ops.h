// The CPU ops, one per .cpp of the same stem. Pointers need only element alignment. Same float operations, in
// the same order, as overlap/ops/reference/. The bindings have checked dtypes, sizes and devices.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "philox.h"
#include "strided.h"

namespace overlap {

// Columns [offset, end) of each bucket row; tensor `tensor` (-1: none) fills the front, `chunk` elements per
// row.
struct Region {
    std::int64_t tensor, offset, end, chunk, numel;
};

struct Bucket {
    void* data;
    DType dtype;
    std::int64_t world, width;
};

// tensors[i].data is null where a gradient is missing.
void pack(const Strided* tensors, const Region* regions, std::int64_t region_count, const Bucket& bucket,
          float scale, bool accumulate, int threads);

void unpack(const Bucket& bucket, const Strided* tensors, const Region* regions, std::int64_t region_count,
            float scale, int threads);

// out = [sum of squares, 1 where an element is not finite], or combined with what `out` holds.
void grad_norm(DType dtype, const void* grad, std::int64_t size, double* out, bool accumulate, int threads);

// `norm`, where set, becomes what grad_norm(out, norm, true) would make of it.
void reduce_sum(DType row_dtype, const void* const* rows, std::int64_t row_count, DType out_dtype, void* out,
                std::int64_t size, float scale, bool accumulate, double* norm, int threads);

struct Array {
    void* data;
    DType dtype;
};

// What every update rule shares: 1-D arrays of one length. states[0] is the weights.
struct Update {
    Array states[3];
    int state_count;
    Array grad;
    Array shard;  // data is null where the weights are the gather's input themselves
    std::int64_t size;
    float grad_factor;
    Rounding rounding;
};

// overlap/ops/coefficients.py, rounded to float.
struct AdamWCoefficients {
    float decay, blend1, beta2, blend2, root_correction2, eps, step_size;
};
struct SGDCoefficients {
    float weight_decay, keep, blend, look_ahead, lr;
};
struct LionCoefficients {
    float decay, beta1, blend1, beta2, blend2, lr;
};

void adamw(const Update& update, const AdamWCoefficients& coefficients, int threads);
void sgd_momentum(const Update& update, const SGDCoefficients& coefficients, bool nesterov, int threads);
void lion(const Update& update, const LionCoefficients& coefficients, int threads);

// One fp32 scale per kMomentBlock elements of the uint8 moments states[1] and states[2].
inline constexpr std::int64_t kMomentBlock = 256;
void adamw_8bit(const Update& update, float* exp_avg_scale, float* exp_avg_sq_scale,
                const AdamWCoefficients& coefficients, int threads);

// payload: int8 or e4m3, one fp32 scale per `block` elements (a power of two, 32 to 16384).
void quantize(DType dtype, const void* values, DType payload_dtype, void* payload, float* scales,
              std::int64_t size, std::int64_t block, int threads);
void dequantize(DType payload_dtype, const void* payload, const float* scales, DType dtype, void* out,
                std::int64_t size, std::int64_t block, bool accumulate, int threads);

}  // namespace overlap
