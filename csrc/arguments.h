// Reads the arguments of one call. Everything is verified before anything is written; where something does
// not fit, the binding returns false and overlap/ops/check says in Python what it is: one home for the
// messages, and a call that fits costs well under a microsecond.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "ops.h"
#include "tensor_view.h"
#include "threads.h"

namespace overlap {

namespace nb = nanobind;

// Offers `function` to Python. None may stand in every place: whether it is allowed there is the function's
// to say.
template <typename... Arguments>
void define(nb::module_& module, const char* name, bool (*function)(Arguments...)) {
    module.def(name, function, (static_cast<void>(sizeof(Arguments)), nb::arg().none())...);
}

// Lets other Python threads run while a long op does; a short one is over before they could start.
class Released {
  public:
    explicit Released(std::int64_t elements) {
        if (elements > kGrain) state_ = PyEval_SaveThread();
    }
    ~Released() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;

  private:
    PyThreadState* state_ = nullptr;
};

// A contiguous 1-D tensor; `size` < 0 accepts any length.
bool read_flat(nb::handle object, std::int64_t size, TensorView& view);

// As read_flat, with one of the float dtypes, or with exactly `dtype`.
bool read_floats(nb::handle object, std::int64_t size, TensorView& view);
bool read_flat_of(nb::handle object, std::int64_t size, DType dtype, TensorView& view);

// None or a one-element tensor. `value` is left alone by None.
bool read_scale(nb::handle object, float& value);
bool read_skip(nb::handle object, bool& skip);

// fp64 [2].
bool read_norm(nb::handle object, double*& norm);

// None, or a seed for stochastic rounding.
bool read_rounding(nb::handle seed, std::int64_t start, std::int64_t step, std::int64_t multiple,
                   Rounding& rounding);

// A tuple of floats, rounded once.
template <int kCount>
bool read_coefficients(nb::handle tuple, float (&values)[kCount]) {
    if (!PyTuple_Check(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != kCount) return false;
    for (int i = 0; i < kCount; ++i) {
        const double value = PyFloat_AsDouble(PyTuple_GET_ITEM(tuple.ptr(), i));
        if (value == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
        values[i] = static_cast<float>(value);
    }
    return true;
}

// Tensors of a list or tuple, None where a place is empty, addressed as the regions of a bucket want them.
bool read_tensors(nb::handle list, const Region* regions, std::int64_t region_count, std::int64_t slot_count,
                  std::vector<Strided>& tensors);

bool read_bucket(nb::handle object, std::int64_t world, std::int64_t width, Bucket& bucket);

}  // namespace overlap
