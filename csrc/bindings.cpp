// Python bindings of the CPU ops. Tensors arrive as data_ptr() and size, so torch's headers are not needed
// and a call costs well under a microsecond; overlap/ops/native.py is the only caller and keeps the tensors
// alive.
#include <nanobind/nanobind.h>

#include "check.h"
#include "ops.h"

namespace nb = nanobind;

namespace overlap {
namespace {

using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

// Tables of int64 as native.py builds them: 4 words per region, 2 words per source.
static_assert(sizeof(Region) == 32 && sizeof(Source) == 16);

void bind_pack(Address regions, Address sources, std::int64_t region_count, Address bucket,
               std::int64_t dtype, std::int64_t world, std::int64_t width, float scale, bool accumulate,
               int threads) {
    require_size(world);
    require_size(width);
    require_memory(pointer<void>(bucket), world * width);
    pack({pointer<const Region>(regions), pointer<const Source>(sources), region_count, pointer<void>(bucket),
          checked_dtype(dtype), world, width, scale, accumulate},
         threads);
}

void bind_adamw(Address master, Address exp_avg, Address exp_avg_sq, std::int64_t grad_dtype, Address grad,
                std::int64_t shard_dtype, Address shard, std::int64_t size, float decay, float blend1,
                float beta2, float blend2, float root_correction2, float eps, float step_size,
                float grad_factor, int threads) {
    require_size(size);
    for (const Address address : {master, exp_avg, exp_avg_sq, grad}) {
        require_memory(pointer<void>(address), size);
    }
    adamw(pointer<float>(master), pointer<float>(exp_avg), pointer<float>(exp_avg_sq),
          checked_dtype(grad_dtype), pointer<const void>(grad), checked_dtype(shard_dtype),
          pointer<void>(shard), size, {decay, blend1, beta2, blend2, root_correction2, eps, step_size},
          grad_factor, threads);
}

void bind_grad_norm(std::int64_t dtype, Address grad, std::int64_t size, Address out, bool accumulate,
                    int threads) {
    require_size(size);
    require_memory(pointer<void>(grad), size);
    require_memory(pointer<void>(out), 2);
    grad_norm(checked_dtype(dtype), pointer<const void>(grad), size, pointer<double>(out), accumulate,
              threads);
}

void bind_reduce_sum(std::int64_t row_dtype, Address rows, std::int64_t row_count, std::int64_t out_dtype,
                     Address out, std::int64_t size, float scale, bool accumulate, int threads) {
    require_size(size);
    require(row_count > 0, "rows", "hold at least one row", row_count, "pass one row per rank");
    require_memory(pointer<void>(out), size);
    reduce_sum(checked_dtype(row_dtype), pointer<const void* const>(rows), row_count,
               checked_dtype(out_dtype), pointer<void>(out), size, scale, accumulate, threads);
}

}  // namespace
}  // namespace overlap

NB_MODULE(_native, module) {
    using released = nb::call_guard<nb::gil_scoped_release>;
    module.doc() = "CPU kernels of overlap.ops; call them through overlap.ops.";
    module.def("pack", &overlap::bind_pack, released());
    module.def("adamw", &overlap::bind_adamw, released());
    module.def("grad_norm", &overlap::bind_grad_norm, released());
    module.def("reduce_sum", &overlap::bind_reduce_sum, released());
}
