#include "blocks.h"

#include <cstring>

#include "clones.h"

namespace overlap {
namespace {

template <typename T>
OVERLAP_CLONES void widen_all(const T* __restrict in, float* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = widen(in[i]);
}

template <typename T>
OVERLAP_CLONES void narrow_all(const float* __restrict in, T* __restrict out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) narrow(in[i], out[i]);
}

}  // namespace

const float* widen(DType dtype, const void* base, std::int64_t index, std::int64_t count, float* scratch) {
    const void* start = at(dtype, base, index);
    if (dtype == DType::fp32) return static_cast<const float*>(start);
    visit_float(dtype,
                [&](auto type) { widen_all(static_cast<const decltype(type)*>(start), scratch, count); });
    return scratch;
}

void narrow(DType dtype, const float* values, void* base, std::int64_t index, std::int64_t count) {
    void* start = at(dtype, base, index);
    if (start == values) return;
    visit_float(dtype, [&](auto type) { narrow_all(values, static_cast<decltype(type)*>(start), count); });
}

}  // namespace overlap
