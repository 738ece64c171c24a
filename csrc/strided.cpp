#include "strided.h"

#include <algorithm>

namespace overlap {
namespace {

// Calls run(memory offset, length) for each stretch of the innermost dimension.
template <typename Run>
void for_each_run(const Strided& tensor, std::int64_t from, std::int64_t count, Run&& run) {
    const int inner = tensor.rank - 1;
    std::int64_t place[Strided::kMaxRank];
    std::int64_t rest = from, offset = 0;
    for (int dim = inner; dim >= 0; --dim) {
        place[dim] = rest % tensor.sizes[dim];
        rest /= tensor.sizes[dim];
        offset += place[dim] * tensor.strides[dim];
    }
    while (count > 0) {
        const std::int64_t length = std::min(count, tensor.sizes[inner] - place[inner]);
        run(offset, length);
        count -= length;
        place[inner] += length;
        offset += length * tensor.strides[inner];
        for (int dim = inner; dim > 0 && place[dim] == tensor.sizes[dim]; --dim) {  // carry
            offset += tensor.strides[dim - 1] - place[dim] * tensor.strides[dim];
            place[dim] = 0;
            ++place[dim - 1];
        }
    }
}

template <typename Body>
void visit_bits(DType dtype, Body&& body) {
    item_size(dtype) == 4 ? body(std::uint32_t{}) : body(std::uint16_t{});
}

}  // namespace

bool collapse(const std::int64_t* sizes, const std::int64_t* strides, std::int32_t rank, Strided& out) {
    out.rank = 0;
    for (std::int32_t dim = 0; dim < rank; ++dim) {
        if (sizes[dim] == 0) {
            out.rank = 0;  // nothing to walk
            return true;
        }
        if (sizes[dim] == 1) continue;
        const bool merges = out.rank > 0 && out.strides[out.rank - 1] == strides[dim] * sizes[dim];
        if (!merges && out.rank == Strided::kMaxRank) return false;
        if (!merges) out.sizes[out.rank++] = 1;
        out.sizes[out.rank - 1] *= sizes[dim];
        out.strides[out.rank - 1] = strides[dim];
    }
    if (out.rank == 1 && out.strides[0] == 1) out.rank = 0;
    return true;
}

void gather(const Strided& tensor, std::int64_t from, std::int64_t count, void* out) {
    const std::int64_t stride = tensor.strides[tensor.rank - 1];
    visit_bits(tensor.dtype, [&](auto type) {
        using Word = decltype(type);
        const auto* base = static_cast<const Word*>(tensor.data);
        auto* next = static_cast<Word*>(out);
        for_each_run(tensor, from, count, [&](std::int64_t offset, std::int64_t length) {
            for (std::int64_t i = 0; i < length; ++i) *next++ = base[offset + i * stride];
        });
    });
}

void scatter(const Strided& tensor, std::int64_t from, std::int64_t count, const void* values) {
    const std::int64_t stride = tensor.strides[tensor.rank - 1];
    visit_bits(tensor.dtype, [&](auto type) {
        using Word = decltype(type);
        auto* base = static_cast<Word*>(tensor.data);
        const auto* next = static_cast<const Word*>(values);
        for_each_run(tensor, from, count, [&](std::int64_t offset, std::int64_t length) {
            for (std::int64_t i = 0; i < length; ++i) base[offset + i * stride] = *next++;
        });
    });
}

}  // namespace overlap
