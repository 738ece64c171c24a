// The order of a sum of squares, fixed by element index alone: element i of a tile goes to lane i % kLanes,
// lanes are added in order, then tiles in order. Threads only choose who computes which tile.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace overlap {

inline constexpr std::int64_t kTile = 16384;
inline constexpr std::int64_t kLanes = 32;

struct NormTile {
    double lanes[kLanes] = {};

    // The next `count` elements of the tile: every call but its last adds a multiple of kLanes.
    void add(DType dtype, const void* values, std::int64_t count);
    double sum() const;
};

// Room for one sum per tile, kept by each calling thread: no allocation in the steady state.
double* tile_sums(std::int64_t tiles);

// Adds the tiles in order and sets out = [sum, flag], or combines them with what `out` holds.
void finish_norm(const double* sums, std::int64_t tiles, double* out, bool accumulate);

}  // namespace overlap
