#include "arguments.h"

namespace overlap {

bool read_flat(nb::handle object, std::int64_t size, TensorView& view) {
    if (!read_tensor(object.ptr(), view) || view.rank != 1) return false;
    return view.flat(size < 0 ? view.sizes[0] : size);
}

bool read_floats(nb::handle object, std::int64_t size, TensorView& view) {
    return read_flat(object, size, view) && is_float(view.dtype);
}

bool read_flat_of(nb::handle object, std::int64_t size, DType dtype, TensorView& view) {
    return read_flat(object, size, view) && view.dtype == dtype;
}

bool read_scale(nb::handle object, float& value) {
    if (object.is_none()) return true;
    TensorView view;
    if (!read_tensor(object.ptr(), view) || view.dtype != DType::fp32 || view.numel() != 1) return false;
    value = *static_cast<const float*>(view.data);
    return true;
}

bool read_skip(nb::handle object, bool& skip) {
    if (object.is_none()) return true;
    TensorView view;
    if (!read_tensor(object.ptr(), view) || view.numel() != 1) return false;
    switch (view.dtype) {
        case DType::fp32:
            skip = *static_cast<const float*>(view.data) != 0;
            return true;
        case DType::fp64:
            skip = *static_cast<const double*>(view.data) != 0;
            return true;
        case DType::int32:
            skip = *static_cast<const std::int32_t*>(view.data) != 0;
            return true;
        default:
            return false;
    }
}

bool read_norm(nb::handle object, double*& norm) {
    TensorView view;
    if (!read_flat_of(object, 2, DType::fp64, view)) return false;
    norm = static_cast<double*>(view.data);
    return true;
}

bool read_rounding(nb::handle seed, std::int64_t start, std::int64_t step, std::int64_t multiple,
                   Rounding& rounding) {
    if (start < 0 || start % multiple != 0) return false;
    rounding.start = start;
    rounding.step = static_cast<std::uint32_t>(step);
    if (seed.is_none()) return true;
    rounding.stochastic = true;
    rounding.seed = PyLong_Check(seed.ptr()) ? PyLong_AsUnsignedLongLong(seed.ptr()) : 0;
    const bool overflowed = PyErr_Occurred() != nullptr;
    if (overflowed) PyErr_Clear();
    return PyLong_Check(seed.ptr()) && !overflowed;
}

namespace {

bool read_place(PyObject* object, std::int64_t numel, Strided& place) {
    place.data = nullptr;
    if (object == Py_None) return true;
    TensorView view;
    if (!read_tensor(object, view) || !is_float(view.dtype) || view.numel() != numel) return false;
    place.data = view.data;
    place.dtype = view.dtype;
    return collapse(view.sizes, view.strides, view.rank, place);
}

}  // namespace

bool read_tensors(nb::handle list, const Region* regions, std::int64_t region_count, std::int64_t slot_count,
                  std::vector<Strided>& tensors) {
    if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr())) return false;
    if (PySequence_Fast_GET_SIZE(list.ptr()) != slot_count) return false;
    tensors.resize(static_cast<std::size_t>(slot_count));
    PyObject** objects = PySequence_Fast_ITEMS(list.ptr());
    for (std::int64_t i = 0; i < region_count; ++i) {
        const std::int64_t index = regions[i].tensor;
        if (index < 0) continue;
        if (!read_place(objects[index], regions[i].numel, tensors[static_cast<std::size_t>(index)]))
            return false;
    }
    return true;
}

bool read_bucket(nb::handle object, std::int64_t world, std::int64_t width, Bucket& bucket) {
    TensorView view;
    if (!read_tensor(object.ptr(), view) || !is_float(view.dtype) || view.rank != 2 || !view.contiguous())
        return false;
    bucket = {view.data, view.dtype, view.sizes[0], view.sizes[1]};
    return bucket.world == world && bucket.width == width;
}

}  // namespace overlap
