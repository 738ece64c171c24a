#include <algorithm>
#include <cmath>
#include <vector>

#include "clones.h"
#include "norm_tile.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

// A loop this light waits for memory, which hardware prefetch alone does not hide: docs/lab-notes.md has the
// figures.
constexpr std::int64_t kAheadBytes = 2048;

template <typename T>
OVERLAP_CLONES void add_squares(const T* __restrict in, double* __restrict lanes, std::int64_t rows) {
    double sums[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
    for (std::int64_t row = 0; row < rows; ++row) {
        const T* here = in + row * kLanes;
        for (std::int64_t line = 0; line < kLanes * std::int64_t{sizeof(T)}; line += 64) {
            __builtin_prefetch(reinterpret_cast<const char*>(here) + kAheadBytes + line);
        }
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            const double value = widen(here[lane]);
            sums[lane] += value * value;
        }
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = sums[lane];
}

template <typename T>
void add_values(const T* in, double* lanes, std::int64_t count) {
    const std::int64_t rows = count / kLanes;
    add_squares(in, lanes, rows);
    for (std::int64_t i = rows * kLanes; i < count; ++i) {
        const double value = widen(in[i]);
        lanes[i % kLanes] += value * value;
    }
}

}  // namespace

void NormTile::add(DType dtype, const void* values, std::int64_t count) {
    visit_float(dtype,
                [&](auto type) { add_values(static_cast<const decltype(type)*>(values), lanes, count); });
}

double NormTile::sum() const {
    double total = 0;
    for (const double lane : lanes) total += lane;
    return total;
}

double* tile_sums(std::int64_t tiles) {
    thread_local std::vector<double> sums;
    if (static_cast<std::int64_t>(sums.size()) < tiles) sums.resize(static_cast<std::size_t>(tiles));
    return sums.data();
}

void finish_norm(const double* sums, std::int64_t tiles, double* out, bool accumulate) {
    double total = 0;
    for (std::int64_t tile = 0; tile < tiles; ++tile) total += sums[tile];
    // No finite float overflows a double's sum of squares: the sum alone tells whether all were finite.
    const double flag = std::isfinite(total) ? 0.0 : 1.0;
    out[0] = accumulate ? out[0] + total : total;
    out[1] = accumulate ? std::max(out[1], flag) : flag;
}

void grad_norm(DType dtype, const void* grad, std::int64_t size, double* out, bool accumulate, int threads) {
    const std::int64_t tiles = (size + kTile - 1) / kTile;
    double* sums = tile_sums(tiles);
    parallel_for(tiles, kGrain / kTile, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
            NormTile squares;
            squares.add(dtype, at(dtype, grad, tile * kTile), std::min(kTile, size - tile * kTile));
            sums[tile] = squares.sum();
        }
    });
    finish_norm(sums, tiles, out, accumulate);
}

}  // namespace overlap
