#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

bool call_grad_norm(nb::handle grad, nb::handle out, bool accumulate, int threads) {
    TensorView values;
    double* norm = nullptr;
    if (!read_floats(grad, -1, values) || !read_norm(out, norm)) return false;
    const Released released(values.sizes[0]);
    grad_norm(values.dtype, values.data, values.sizes[0], norm, accumulate, threads);
    return true;
}

bool read_rows(nb::handle list, std::int64_t size, TensorView& first, std::vector<const void*>& rows) {
    if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr())) return false;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(list.ptr());
    rows.resize(static_cast<std::size_t>(count));
    PyObject** objects = PySequence_Fast_ITEMS(list.ptr());
    for (Py_ssize_t k = 0; k < count; ++k) {
        TensorView row;
        if (!read_floats(objects[k], size, row)) return false;
        if (k == 0) first = row;
        if (row.dtype != first.dtype) return false;
        rows[static_cast<std::size_t>(k)] = row.data;
    }
    return count > 0;
}

bool call_reduce_sum(nb::handle list, nb::handle out, float scale, bool accumulate, nb::handle norm_object,
                     int threads) {
    thread_local std::vector<const void*> rows;
    TensorView target, first;
    double* norm = nullptr;
    if (!read_floats(out, -1, target) || !read_rows(list, target.sizes[0], first, rows)) return false;
    if (!norm_object.is_none() && !read_norm(norm_object, norm)) return false;
    const Released released(target.sizes[0]);
    reduce_sum(first.dtype, rows.data(), static_cast<std::int64_t>(rows.size()), target.dtype, target.data,
               target.sizes[0], scale, accumulate, norm, threads);
    return true;
}

}  // namespace

void bind_reduction(nb::module_& module) {
    define(module, "grad_norm", &call_grad_norm);
    define(module, "reduce_sum", &call_reduce_sum);
}

}  // namespace overlap
