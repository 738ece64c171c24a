#include "arguments.h"

#include <cmath>

namespace overlap {

bool read_flat(Object object, std::int64_t size, TensorView& view) {
    if (!read_tensor(object.ptr(), view) || view.rank != 1) return false;
    if (!view.flat(size < 0 ? view.sizes[0] : size)) return false;
    return view.sizes[0] != 1 || !lazily_negated(object.ptr());
}

bool read_floats(Object object, std::int64_t size, TensorView& view) {
    return read_flat(object, size, view) && is_float(view.dtype);
}

bool read_flat_of(Object object, std::int64_t size, DType dtype, TensorView& view) {
    return read_flat(object, size, view) && view.dtype == dtype;
}

namespace {

bool single(Object object, const TensorView& view) {
    return view.numel() == 1 && !lazily_negated(object.ptr());
}

}  // namespace

bool read_scale(Object object, float& value) {
    if (object.is_none()) return true;
    TensorView view;
    if (!read_tensor(object.ptr(), view) || view.dtype != DType::fp32 || !single(object, view)) return false;
    value = *static_cast<const float*>(view.data);
    return true;
}

bool read_skip(Object object, bool& skip) {
    if (object.is_none()) return true;
    TensorView view;
    if (!read_tensor(object.ptr(), view) || !single(object, view)) return false;
    switch (view.dtype) {
        case DType::fp32:
            skip = *static_cast<const float*>(view.data) != 0;
            return true;
        case DType::fp64:
            skip = *static_cast<const double*>(view.data) != 0;
            return true;
        case DType::boolean:
            skip = *static_cast<const std::uint8_t*>(view.data) != 0;
            return true;
        case DType::int32:
            skip = *static_cast<const std::int32_t*>(view.data) != 0;
            return true;
        default:
            return false;
    }
}

bool read_norm(Object object, double*& norm) {
    TensorView view;
    if (!read_flat_of(object, 2, DType::fp64, view)) return false;
    norm = static_cast<double*>(view.data);
    return true;
}

bool read_number(Object object, float& value) {
    if (!PyFloat_CheckExact(object.ptr()) && !PyLong_CheckExact(object.ptr())) return false;
    const double number = PyFloat_AsDouble(object.ptr());
    if (PyErr_Occurred() != nullptr) {  // an integer beyond every float
        PyErr_Clear();
        return false;
    }
    value = static_cast<float>(number);
    return std::isfinite(value);
}

bool read_flag(Object object, bool& value) {
    value = object.ptr() == Py_True;
    return PyBool_Check(object.ptr());
}

bool read_integer(Object object, std::int64_t& value) {
    if (!PyLong_Check(object.ptr()) || PyBool_Check(object.ptr())) return false;
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    return overflow == 0;
}

bool read_rounding(Object seed, Object start, Object step, std::int64_t multiple, Rounding& rounding) {
    std::int64_t steps = 0;
    if (!read_integer(start, rounding.start) || rounding.start < 0 || rounding.start % multiple != 0)
        return false;
    if (!read_integer(step, steps) || steps < 1) return false;
    rounding.step = static_cast<std::uint32_t>(steps);
    if (seed.is_none()) return true;
    if (!PyLong_Check(seed.ptr()) || PyBool_Check(seed.ptr())) return false;
    rounding.stochastic = true;
    rounding.seed = PyLong_AsUnsignedLongLong(seed.ptr());
    const bool overflowed = PyErr_Occurred() != nullptr;
    if (overflowed) PyErr_Clear();
    return !overflowed;
}

namespace {

bool read_place(PyObject* object, std::int64_t numel, Strided& place) {
    place.data = nullptr;
    if (object == Py_None) return true;
    TensorView view;
    if (!read_tensor(object, view) || !is_float(view.dtype) || view.numel() != numel) return false;
    place.data = view.data;
    place.dtype = view.dtype;
    if (!collapse(view.sizes, view.strides, view.rank, place)) return false;
    return (place.rank == 0 && numel > 1) || !lazily_negated(object);
}

}  // namespace

bool read_tensors(Object list, const Region* regions, std::int64_t region_count, std::int64_t slot_count,
                  std::vector<Strided>& tensors) {
    if (length_of(list) != slot_count) return false;
    tensors.resize(static_cast<std::size_t>(slot_count));
    for (std::int64_t i = 0; i < region_count; ++i) {
        const std::int64_t index = regions[i].tensor;
        if (index < 0) continue;
        Strided& place = tensors[static_cast<std::size_t>(index)];
        if (!read_place(item_of(list, index).ptr(), regions[i].numel, place)) return false;
    }
    return true;
}

bool read_bucket(Object object, std::int64_t world, std::int64_t width, Bucket& bucket) {
    TensorView view;
    if (!read_tensor(object.ptr(), view) || !is_float(view.dtype) || view.rank != 2 || !view.contiguous())
        return false;
    bucket = {view.data, view.dtype, view.sizes[0], view.sizes[1]};
    return bucket.world == world && bucket.width == width;
}

}  // namespace overlap
