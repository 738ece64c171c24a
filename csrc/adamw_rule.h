// One AdamW step of one element; overlap/ops/reference/adamw.py writes the same formula in plain torch.
#pragma once

#include <cmath>

#include "clones.h"
#include "ops.h"

namespace overlap {

struct AdamWRule {
    static constexpr int kStates = 3;
    AdamWCoefficients c;
    float grad_factor;

    OVERLAP_INLINE void operator()(float* states, float gradient) const {
        const float g = gradient * grad_factor;
        const float m = states[1] + (g - states[1]) * c.blend1;
        const float v = states[2] * c.beta2 + (g * c.blend2) * g;
        const float denominator = std::sqrt(v) / c.root_correction2 + c.eps;
        states[0] = states[0] * c.decay - (m * c.step_size) / denominator;
        states[1] = m;
        states[2] = v;
    }
};

}  // namespace overlap
