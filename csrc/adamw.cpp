#include <algorithm>
#include <cmath>

#include "clones.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

OVERLAP_CLONES void update(float* __restrict master, float* __restrict exp_avg, float* __restrict exp_avg_sq,
                           const float* __restrict grad, std::int64_t n, AdamWCoefficients c,
                           float grad_factor) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float g = grad[i] * grad_factor;
        const float m = exp_avg[i] + (g - exp_avg[i]) * c.blend1;
        const float v = exp_avg_sq[i] * c.beta2 + (g * c.blend2) * g;
        const float denominator = std::sqrt(v) / c.root_correction2 + c.eps;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        master[i] = master[i] * c.decay - (m * c.step_size) / denominator;
    }
}

}  // namespace

void adamw(float* master, float* exp_avg, float* exp_avg_sq, DType grad_dtype, const void* grad,
           DType shard_dtype, void* shard, std::int64_t size, const AdamWCoefficients& coefficients,
           float grad_factor, int threads) {
    parallel_for(size, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        float scratch[kBlock];
        for (std::int64_t i = begin; i < end; i += kBlock) {
            const std::int64_t count = std::min(kBlock, end - i);
            const float* g = widen(grad_dtype, grad, i, count, scratch);
            update(master + i, exp_avg + i, exp_avg_sq + i, g, count, coefficients, grad_factor);
            // The block is still in L1: the cast for the next gather costs only its own write.
            if (shard != nullptr) narrow(shard_dtype, master + i, shard, i, count);
        }
    });
}

}  // namespace overlap
