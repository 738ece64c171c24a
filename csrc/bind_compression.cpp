#include <bit>

#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

struct Compressed {
    TensorView payload, scales;
    std::int64_t block = 0;
};

bool read_compressed(Object payload, Object scales, Object block, std::int64_t size, Compressed& compressed) {
    if (!read_integer(block, compressed.block) || compressed.block < 32 || compressed.block > 16384)
        return false;
    if (!std::has_single_bit(static_cast<std::uint64_t>(compressed.block))) return false;
    if (!read_flat(payload, size, compressed.payload)) return false;
    const DType dtype = compressed.payload.dtype;
    const std::int64_t blocks = (size + compressed.block - 1) / compressed.block;
    return (dtype == DType::int8 || dtype == DType::e4m3) &&
           read_flat_of(scales, blocks, DType::fp32, compressed.scales);
}

bool call_quantize(Object values, Object payload, Object scales, Object block, Object thread_count) {
    TensorView in;
    Compressed out;
    std::int64_t threads = 1;
    if (!read_floats(values, -1, in) || !read_compressed(payload, scales, block, in.sizes[0], out) ||
        !read_integer(thread_count, threads)) {
        return false;
    }
    const Released released(in.sizes[0]);
    quantize(in.dtype, in.data, out.payload.dtype, out.payload.data, static_cast<float*>(out.scales.data),
             in.sizes[0], out.block, static_cast<int>(threads));
    return true;
}

bool call_dequantize(Object payload, Object scales, Object target, Object block, Object accumulate_flag,
                     Object thread_count) {
    TensorView out;
    Compressed in;
    bool accumulate = false;
    std::int64_t threads = 1;
    if (!read_floats(target, -1, out) || !read_compressed(payload, scales, block, out.sizes[0], in) ||
        !read_flag(accumulate_flag, accumulate) || !read_integer(thread_count, threads)) {
        return false;
    }
    const Released released(out.sizes[0]);
    dequantize(in.payload.dtype, in.payload.data, static_cast<const float*>(in.scales.data), out.dtype,
               out.data, out.sizes[0], in.block, accumulate, static_cast<int>(threads));
    return true;
}

}  // namespace

void bind_compression(nb::module_& module) {
    define<&call_quantize>(module, "quantize");
    define<&call_dequantize>(module, "dequantize");
}

}  // namespace overlap
