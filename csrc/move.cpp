#include "move.h"

#include <cstring>

#include "clones.h"

namespace overlap {
namespace {

template <bool kAdd, typename In, typename Out>
OVERLAP_CLONES void scale(const In* __restrict in, float factor, Out* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float value = widen(in[i]) * factor;
        narrow(kAdd ? widen(out[i]) + value : value, out[i]);
    }
}

template <bool kAdd>
void scale_all(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float factor) {
    visit_float(in_dtype, [&](auto in_type) {
        visit_float(out_dtype, [&](auto out_type) {
            scale<kAdd>(static_cast<const decltype(in_type)*>(in), factor,
                        static_cast<decltype(out_type)*>(out), count);
        });
    });
}

}  // namespace

void move(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float scale) {
    if (in_dtype == out_dtype && scale == 1.0f) {
        std::memcpy(out, in, static_cast<std::size_t>(count * item_size(in_dtype)));
        return;
    }
    scale_all<false>(in_dtype, in, out_dtype, out, count, scale);
}

void move_onto(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float scale) {
    scale_all<true>(in_dtype, in, out_dtype, out, count, scale);
}

}  // namespace overlap
