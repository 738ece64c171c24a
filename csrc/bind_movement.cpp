#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

// The table of overlap/ops/native/movement.py: five words per region.
static_assert(sizeof(Region) == 40);

struct Layout {
    const Region* regions;
    std::int64_t region_count, slot_count, world, width;
};

// The words that movement.py keeps for one layout; the last of them are a promise about the table.
bool read_layout(Object table, Layout& layout) {
    std::int64_t words[5];
    if (length_of(table) != 5) return false;
    for (int i = 0; i < 5; ++i) {
        if (!read_integer(item_of(table, i), words[i])) return false;
    }
    layout = {reinterpret_cast<const Region*>(words[0]), words[1], words[2], words[3], words[4]};
    return true;
}

bool read_bucket_of(Object object, const Layout& layout, Bucket& bucket) {
    return read_bucket(object, layout.world, layout.width, bucket);
}

bool read_places(Object list, const Layout& layout, std::vector<Strided>& places) {
    return read_tensors(list, layout.regions, layout.region_count, layout.slot_count, places);
}

using Places = Lent<Strided>;

bool call_pack(Object grads, Object bucket, Object table, Object scale_number, Object accumulate_flag,
               Object thread_count) {
    Layout layout;
    Bucket out;
    float scale = 1.0f;
    bool accumulate = false;
    std::int64_t threads = 1;
    Places sources;
    if (!read_layout(table, layout) || !read_number(scale_number, scale) ||
        !read_flag(accumulate_flag, accumulate) || !read_integer(thread_count, threads) ||
        !read_places(grads, layout, *sources) || !read_bucket_of(bucket, layout, out)) {
        return false;
    }
    const Released released(out.world * out.width);
    pack(sources->data(), layout.regions, layout.region_count, out, scale, accumulate,
         static_cast<int>(threads));
    return true;
}

// Whether no two elements share memory: each stride reaches over all that the smaller ones cover.
bool disjoint(const Strided& tensor) {
    for (int one = 0; one < tensor.rank; ++one) {
        if (tensor.strides[one] == 0) return false;
        for (int other = 0; other < tensor.rank; ++other) {
            const std::int64_t wide = tensor.strides[one], narrow = tensor.strides[other];
            const bool inside = other != one && narrow <= wide;
            if (inside && wide < narrow * tensor.sizes[other]) return false;
        }
    }
    return true;
}

bool call_unpack(Object bucket, Object tensors, Object table, Object scale_number, Object thread_count) {
    Layout layout;
    Bucket in;
    float scale = 1.0f;
    std::int64_t threads = 1;
    Places targets;
    if (!read_layout(table, layout) || !read_number(scale_number, scale) ||
        !read_integer(thread_count, threads) || !read_places(tensors, layout, *targets) ||
        !read_bucket_of(bucket, layout, in)) {
        return false;
    }
    for (const Strided& target : *targets) {
        if (target.data != nullptr && !disjoint(target)) return false;
    }
    const Released released(in.world * in.width);
    unpack(in, targets->data(), layout.regions, layout.region_count, scale, static_cast<int>(threads));
    return true;
}

}  // namespace

void bind_movement(nb::module_& module) {
    define<&call_pack>(module, "pack");
    define<&call_unpack>(module, "unpack");
}

}  // namespace overlap
