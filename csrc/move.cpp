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

// Calls body(in, out) with typed pointers.
template <typename Body>
void visit_both(DType in_dtype, const void* in, DType out_dtype, void* out, const Body& body) {
    visit_float(in_dtype, [&](auto in_type) {
        visit_float(out_dtype, [&](auto out_type) {
            body(static_cast<const decltype(in_type)*>(in), static_cast<decltype(out_type)*>(out));
        });
    });
}

template <bool kAdd>
void scale_all(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float factor) {
    visit_both(in_dtype, in, out_dtype, out,
               [&](auto* from, auto* to) { scale<kAdd>(from, factor, to, count); });
}

// Short runs: no call for each.
template <bool kAdd, typename In, typename Out>
void scale_rows(const In* __restrict in, float factor, Out* __restrict out, std::int64_t rows,
                std::int64_t chunk, std::int64_t stride) {
    for (std::int64_t row = 0; row < rows; ++row, in += chunk, out += stride) {
        for (std::int64_t i = 0; i < chunk; ++i) {
            const float value = widen(in[i]) * factor;
            narrow(kAdd ? widen(out[i]) + value : value, out[i]);
        }
    }
}

template <typename Bits>
void copy_rows(const void* in, void* out, std::int64_t rows, std::int64_t chunk, std::int64_t stride) {
    const auto* __restrict from = static_cast<const Bits*>(in);
    auto* __restrict to = static_cast<Bits*>(out);
    for (std::int64_t row = 0; row < rows; ++row, from += chunk, to += stride) {
        for (std::int64_t i = 0; i < chunk; ++i) to[i] = from[i];
    }
}

template <typename Bits>
void zero_rows(void* out, std::int64_t rows, std::int64_t count, std::int64_t stride) {
    auto* __restrict to = static_cast<Bits*>(out);
    for (std::int64_t row = 0; row < rows; ++row, to += stride) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = 0;
    }
}

}  // namespace

void move(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float scale) {
    if (in_dtype == out_dtype && scale == 1.0f) {
        std::memcpy(out, in, static_cast<std::size_t>(count * item_size(in_dtype)));
        return;
    }
    scale_all<false>(in_dtype, in, out_dtype, out, count, scale);
}

void move_rows(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t rows,
               std::int64_t chunk, std::int64_t stride, float scale, bool add) {
    if (in_dtype == out_dtype && scale == 1.0f && !add) {
        const auto copy = item_size(in_dtype) == 4 ? copy_rows<std::uint32_t> : copy_rows<std::uint16_t>;
        return copy(in, out, rows, chunk, stride);
    }
    visit_both(in_dtype, in, out_dtype, out, [&](auto* from, auto* to) {
        add ? scale_rows<true>(from, scale, to, rows, chunk, stride)
            : scale_rows<false>(from, scale, to, rows, chunk, stride);
    });
}

void clear_rows(DType dtype, void* out, std::int64_t rows, std::int64_t count, std::int64_t stride) {
    const auto zero = item_size(dtype) == 4 ? zero_rows<std::uint32_t> : zero_rows<std::uint16_t>;
    zero(out, rows, count, stride);
}

void move_onto(DType in_dtype, const void* in, DType out_dtype, void* out, std::int64_t count, float scale) {
    scale_all<true>(in_dtype, in, out_dtype, out, count, scale);
}

}  // namespace overlap
