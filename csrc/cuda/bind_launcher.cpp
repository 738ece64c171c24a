// Python bindings of the launcher: module overlap._cuda. Tensors arrive as addresses, so neither torch's
// headers nor CUDA's are needed; overlap/ops/cuda_face is the only caller. The GIL is released: a launch
// waits while the stream's queue is full.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "launcher.h"

namespace nb = nanobind;

namespace overlap::cuda {
namespace {

using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

void move(Launcher& launcher, const char* kernel, Device device, Address stream, Address words,
          std::int64_t count, std::int32_t first, Address regions, Address dims, Address blocks,
          unsigned block_count, unsigned world, Address bucket, std::int64_t width, float scale) {
    MoveArguments arguments;
    arguments.regions = pointer<const Region>(regions);
    arguments.blocks = pointer<const Block>(blocks);
    arguments.dims = pointer<const Dim>(dims);
    arguments.bucket = pointer<void>(bucket);
    arguments.width = width;
    arguments.scale = scale;
    arguments.first = first;
    launcher.move(kernel, {device, stream}, arguments, {pointer<const std::uint64_t>(words), count},
                  block_count, world);
}

void reduce_sum(Launcher& launcher, const char* kernel, Device device, Address stream, Address rows,
                std::int64_t count, Address start, Address out, Address partial, std::int64_t size,
                float scale, bool accumulate) {
    ReduceArguments arguments;
    arguments.out = pointer<void>(out);
    arguments.start = pointer<const float>(start);
    arguments.partial = pointer<double>(partial);
    arguments.size = size;
    arguments.scale = scale;
    arguments.accumulate = accumulate;
    launcher.reduce_sum(kernel, {device, stream}, arguments, {pointer<const std::uint64_t>(rows), count});
}

void sum_squares(Launcher& launcher, const char* kernel, Device device, Address stream, Address grad,
                 Address partial, std::int64_t size) {
    SquareArguments arguments{pointer<const void>(grad), pointer<double>(partial), size};
    launcher.sum_squares(kernel, {device, stream}, arguments);
}

void finish(Launcher& launcher, Device device, Address stream, Address partial, Address out,
            std::int64_t tiles, bool accumulate) {
    FinishArguments arguments{pointer<const double>(partial), pointer<double>(out), tiles, accumulate};
    launcher.finish({device, stream}, arguments);
}

}  // namespace
}  // namespace overlap::cuda

NB_MODULE(_cuda, module) {
    using overlap::cuda::Launcher;
    using released = nb::call_guard<nb::gil_scoped_release>;
    module.doc() = "Launches the CUDA C++ kernels of overlap.ops; call them through overlap.ops.";
    nb::set_leak_warnings(false);  // a program may end while its launchers are alive
    module.attr("THREADS") = overlap::cuda::kThreads;
    module.attr("BLOCK") = overlap::cuda::kBlock;
    module.attr("TILE") = overlap::cuda::kTile;
    module.attr("CAPACITY") = overlap::cuda::kCapacity;
    nb::class_<Launcher>(module, "Launcher")
        .def(nb::init<const std::string&, const std::string&>(), nb::arg("library"), nb::arg("image"))
        .def("load", &Launcher::load, nb::arg("device"), released())
        .def("move", &overlap::cuda::move, released())
        .def("reduce_sum", &overlap::cuda::reduce_sum, released())
        .def("sum_squares", &overlap::cuda::sum_squares, released())
        .def("finish", &overlap::cuda::finish, released());
}
