#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

// The table of overlap/ops/native/layout.py: five words per region.
static_assert(sizeof(Region) == 40);

struct Layout {
    const Region* regions;
    std::int64_t region_count, slot_count, world, width;
};

std::vector<Strided>& places() {
    thread_local std::vector<Strided> kept;  // grows to the largest bucket, then allocates no more
    return kept;
}

Layout layout_at(std::uintptr_t table, std::int64_t region_count, std::int64_t slot_count, std::int64_t world,
                 std::int64_t width) {
    return {reinterpret_cast<const Region*>(table), region_count, slot_count, world, width};
}

bool call_pack(nb::handle grads, nb::handle bucket, std::uintptr_t table, std::int64_t region_count,
               std::int64_t slot_count, std::int64_t world, std::int64_t width, float scale, bool accumulate,
               int threads) {
    const Layout layout = layout_at(table, region_count, slot_count, world, width);
    Bucket out;
    std::vector<Strided>& sources = places();
    if (!read_bucket(bucket, world, width, out) ||
        !read_tensors(grads, layout.regions, region_count, slot_count, sources)) {
        return false;
    }
    const Released released(world * width);
    pack(sources.data(), layout.regions, region_count, out, scale, accumulate, threads);
    return true;
}

// Whether no two elements share memory: each stride reaches over all that the smaller ones cover.
bool disjoint(const Strided& tensor) {
    for (int one = 0; one < tensor.rank; ++one) {
        for (int other = 0; other < tensor.rank; ++other) {
            const bool inside = tensor.strides[other] < tensor.strides[one] ||
                                (tensor.strides[other] == tensor.strides[one] && other != one);
            if (inside && tensor.strides[one] < tensor.strides[other] * tensor.sizes[other]) return false;
        }
        if (tensor.strides[one] == 0) return false;
    }
    return true;
}

bool call_unpack(nb::handle bucket, nb::handle tensors, std::uintptr_t table, std::int64_t region_count,
                 std::int64_t slot_count, std::int64_t world, std::int64_t width, float scale, int threads) {
    const Layout layout = layout_at(table, region_count, slot_count, world, width);
    Bucket in;
    std::vector<Strided>& targets = places();
    if (!read_bucket(bucket, world, width, in) ||
        !read_tensors(tensors, layout.regions, region_count, slot_count, targets)) {
        return false;
    }
    for (const Strided& target : targets) {
        if (target.data != nullptr && !disjoint(target)) return false;
    }
    const Released released(world * width);
    unpack(in, targets.data(), layout.regions, region_count, scale, threads);
    return true;
}

}  // namespace

void bind_movement(nb::module_& module) {
    define(module, "pack", &call_pack);
    define(module, "unpack", &call_unpack);
}

}  // namespace overlap
