#include "adamw_rule.h"
#include "update.h"

namespace overlap {

void adamw(const Update& update, const AdamWCoefficients& coefficients, int threads) {
    update_all(update, threads, AdamWRule{coefficients, update.grad_factor});
}

}  // namespace overlap
