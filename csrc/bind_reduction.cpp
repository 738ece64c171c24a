#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

bool call_grad_norm(Object grad, Object out, Object accumulate_flag, Object thread_count) {
    bool accumulate = false;
    std::int64_t threads = 1;
    TensorView values;
    double* norm = nullptr;
    if (!read_floats(grad, -1, values) || !read_norm(out, norm) || !read_flag(accumulate_flag, accumulate) ||
        !read_integer(thread_count, threads)) {
        return false;
    }
    const Released released(values.sizes[0]);
    grad_norm(values.dtype, values.data, values.sizes[0], norm, accumulate, static_cast<int>(threads));
    return true;
}

bool read_rows(Object list, std::int64_t size, TensorView& first, std::vector<const void*>& rows) {
    const Py_ssize_t count = length_of(list);
    if (count < 1) return false;
    rows.resize(static_cast<std::size_t>(count));
    for (Py_ssize_t k = 0; k < count; ++k) {
        TensorView row;
        if (!read_floats(item_of(list, k), size, row)) return false;
        if (k == 0) first = row;
        if (row.dtype != first.dtype) return false;
        rows[static_cast<std::size_t>(k)] = row.data;
    }
    return true;
}

bool call_reduce_sum(Object list, Object out, Object scale_number, Object accumulate_flag, Object norm_object,
                     Object thread_count) {
    float scale = 1.0f;
    bool accumulate = false;
    std::int64_t threads = 1;
    Lent<const void*> rows;
    TensorView target, first;
    double* norm = nullptr;
    if (!read_number(scale_number, scale) || !read_flag(accumulate_flag, accumulate) ||
        !read_integer(thread_count, threads)) {
        return false;
    }
    if (!read_floats(out, -1, target) || !read_rows(list, target.sizes[0], first, *rows)) return false;
    if (!norm_object.is_none() && !read_norm(norm_object, norm)) return false;
    const Released released(target.sizes[0]);
    reduce_sum(first.dtype, rows->data(), static_cast<std::int64_t>(rows->size()), target.dtype, target.data,
               target.sizes[0], scale, accumulate, norm, static_cast<int>(threads));
    return true;
}

}  // namespace

void bind_reduction(nb::module_& module) {
    define<&call_grad_norm>(module, "grad_norm");
    define<&call_reduce_sum>(module, "reduce_sum");
}

}  // namespace overlap
