#include "update.h"

namespace overlap {
namespace {

struct LionRule {
    static constexpr int kStates = 2;
    LionCoefficients c;
    float grad_factor;

    OVERLAP_INLINE void operator()(float* states, float gradient) const {
        const float g = gradient * grad_factor;
        const float u = states[1] * c.beta1 + g * c.blend1;
        const float sign =
            u != u ? u : static_cast<float>((u > 0.0f) - (u < 0.0f));  // +0 for a zero of either sign
        states[0] = states[0] * c.decay - sign * c.lr;
        states[1] = states[1] * c.beta2 + g * c.blend2;
    }
};

}  // namespace

void lion(const Update& update, const LionCoefficients& coefficients, int threads) {
    update_all(update, threads, LionRule{coefficients, update.grad_factor});
}

}  // namespace overlap
