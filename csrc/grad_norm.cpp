#include <algorithm>
#include <cmath>
#include <vector>

#include "clones.h"
#include "ops.h"
#include "threads.h"

namespace overlap {
namespace {

// The order of the sum is fixed by element index alone: element i of a tile goes to lane i % kLanes, lanes
// are added in order, then tiles in order. Threads only choose who computes which tile.
constexpr std::int64_t kTile = 16384;
constexpr std::int64_t kLanes = 32;

OVERLAP_CLONES void add_squares(const float* __restrict in, double* __restrict lanes, std::int64_t rows) {
    double sums[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            const double value = in[row * kLanes + lane];
            sums[lane] += value * value;
        }
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = sums[lane];
}

double tile_sum(DType dtype, const void* grad, std::int64_t begin, std::int64_t end) {
    static_assert(kTile % kBlock == 0 && kBlock % kLanes == 0);
    float scratch[kBlock];
    double lanes[kLanes] = {};
    for (std::int64_t i = begin; i < end; i += kBlock) {
        const std::int64_t count = std::min(kBlock, end - i);
        const float* values = widen(dtype, grad, i, count, scratch);
        const std::int64_t rows = count / kLanes;
        add_squares(values, lanes, rows);
        for (std::int64_t rest = rows * kLanes; rest < count; ++rest) {
            const double value = values[rest];
            lanes[rest % kLanes] += value * value;
        }
    }
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
}

double sum_of_squares(DType dtype, const void* grad, std::int64_t size, int threads) {
    const std::int64_t tiles = (size + kTile - 1) / kTile;
    std::vector<double> partial(static_cast<std::size_t>(tiles));
    parallel_for(tiles, kGrain / kTile, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
            partial[static_cast<std::size_t>(tile)] =
                tile_sum(dtype, grad, tile * kTile, std::min((tile + 1) * kTile, size));
        }
    });
    double sum = 0;
    for (const double tile : partial) sum += tile;
    return sum;
}

}  // namespace

void grad_norm(DType dtype, const void* grad, std::int64_t size, double* out, bool accumulate, int threads) {
    const double total = sum_of_squares(dtype, grad, size, threads);
    // No finite float overflows a double's sum of squares: the sum alone tells whether all were finite.
    const double flag = std::isfinite(total) ? 0.0 : 1.0;
    out[0] = accumulate ? out[0] + total : total;
    out[1] = accumulate ? std::max(out[1], flag) : flag;
}

}  // namespace overlap
