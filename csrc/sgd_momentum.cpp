#include "update.h"

namespace overlap {
namespace {

template <bool kNesterov>
struct SGDRule {
    static constexpr int kStates = 2;
    SGDCoefficients c;
    float grad_factor;

    OVERLAP_INLINE void operator()(float* states, float gradient) const {
        const float g = gradient * grad_factor + states[0] * c.weight_decay;
        const float buffer = states[1] * c.keep + g * c.blend;
        const float direction = kNesterov ? g + buffer * c.look_ahead : buffer;
        states[0] = states[0] - direction * c.lr;
        states[1] = buffer;
    }
};

}  // namespace

void sgd_momentum(const Update& update, const SGDCoefficients& coefficients, bool nesterov, int threads) {
    nesterov ? update_all(update, threads, SGDRule<true>{coefficients, update.grad_factor})
             : update_all(update, threads, SGDRule<false>{coefficients, update.grad_factor});
}

}  // namespace overlap
