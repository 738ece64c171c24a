// A tensor of any shape and strides, addressed by its row-major element number.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace overlap {

struct Strided {
    static constexpr int kMaxRank = 8;

    void* data;
    DType dtype;
    int rank;  // 0 where the elements lie back to back in order
    std::int64_t sizes[kMaxRank], strides[kMaxRank];
};

// Merges dimensions that one stride can walk, outermost first. False where more than kMaxRank are left.
bool collapse(const std::int64_t* sizes, const std::int64_t* strides, std::int32_t rank, Strided& out);

// Elements [from, from + count) of a tensor with rank > 0, back to back in its own dtype; and the other way.
void gather(const Strided& tensor, std::int64_t from, std::int64_t count, void* out);
void scatter(const Strided& tensor, std::int64_t from, std::int64_t count, const void* values);

}  // namespace overlap
