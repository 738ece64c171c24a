#include <bit>

#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

struct Compressed {
    TensorView payload, scales;
};

bool read_compressed(nb::handle payload, nb::handle scales, std::int64_t size, std::int64_t block,
                     Compressed& compressed) {
    if (block < 32 || block > 16384 || !std::has_single_bit(static_cast<std::uint64_t>(block))) return false;
    if (!read_flat(payload, size, compressed.payload)) return false;
    const DType dtype = compressed.payload.dtype;
    return (dtype == DType::int8 || dtype == DType::e4m3) &&
           read_flat_of(scales, (size + block - 1) / block, DType::fp32, compressed.scales);
}

bool call_quantize(nb::handle values, nb::handle payload, nb::handle scales, std::int64_t block,
                   int threads) {
    TensorView in;
    Compressed out;
    if (!read_floats(values, -1, in) || !read_compressed(payload, scales, in.sizes[0], block, out))
        return false;
    const Released released(in.sizes[0]);
    quantize(in.dtype, in.data, out.payload.dtype, out.payload.data, static_cast<float*>(out.scales.data),
             in.sizes[0], block, threads);
    return true;
}

bool call_dequantize(nb::handle payload, nb::handle scales, nb::handle target, std::int64_t block,
                     bool accumulate, int threads) {
    TensorView out;
    Compressed in;
    if (!read_floats(target, -1, out) || !read_compressed(payload, scales, out.sizes[0], block, in))
        return false;
    const Released released(out.sizes[0]);
    dequantize(in.payload.dtype, in.payload.data, static_cast<const float*>(in.scales.data), out.dtype,
               out.data, out.sizes[0], block, accumulate, threads);
    return true;
}

}  // namespace

void bind_compression(nb::module_& module) {
    define(module, "quantize", &call_quantize);
    define(module, "dequantize", &call_dequantize);
}

}  // namespace overlap
