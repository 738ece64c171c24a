// Reads the arguments of one call. Everything is verified before anything is written; where something does
// not fit, the binding returns false and overlap/ops/check says in Python what it is: one home for the
// messages, and a call that fits costs well under a microsecond.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops.h"
#include "tensor_view.h"
#include "threads.h"

namespace overlap {

namespace nb = nanobind;

using Object = nb::handle;

template <auto kFunction, typename... Arguments, std::size_t... kIndex>
PyObject* call_with(bool (*)(Arguments...), PyObject* const* objects, std::index_sequence<kIndex...>) {
    static_assert((std::is_same_v<Arguments, Object> && ...));
    return PyBool_FromLong(kFunction(Object(objects[kIndex])...));
}

template <auto kFunction, typename... Arguments>
PyObject* call(bool (*function)(Arguments...), PyObject* const* objects, Py_ssize_t count) {
    if (count != static_cast<Py_ssize_t>(sizeof...(Arguments))) {
        return PyErr_Format(PyExc_TypeError,
                            "expected %zd arguments, but got %zd; call it through overlap.ops",
                            static_cast<Py_ssize_t>(sizeof...(Arguments)), count);
    }
    try {
        return call_with<kFunction>(function, objects, std::index_sequence_for<Arguments...>{});
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& error) {
        return PyErr_Format(PyExc_RuntimeError, "%s", error.what());
    }
}

// Offers a function to Python. Every argument may be anything: what is right there is the function's to say.
// By Python's own fast call, and not nanobind's, whose conversions would cost as much as reading two tensors.
template <auto kFunction>
void define(nb::module_& module, const char* name) {
    static PyMethodDef method{};
    method.ml_name = name;
    method.ml_flags = METH_FASTCALL;
    method.ml_meth = reinterpret_cast<PyCFunction>(
        reinterpret_cast<void (*)()>(+[](PyObject*, PyObject* const* objects, Py_ssize_t count) {
            return call<kFunction>(kFunction, objects, count);
        }));
    module.attr(name) = nb::steal(PyCFunction_NewEx(&method, nullptr, nullptr));
}

// A list or tuple; -1 for anything else. By functions: the macros are not part of Python's stable ABI.
inline Py_ssize_t length_of(Object sequence) {
    if (PyTuple_Check(sequence.ptr())) return PyTuple_Size(sequence.ptr());
    return PyList_Check(sequence.ptr()) ? PyList_Size(sequence.ptr()) : -1;
}
inline Object item_of(Object sequence, Py_ssize_t index) {
    return PyTuple_Check(sequence.ptr()) ? PyTuple_GetItem(sequence.ptr(), index)
                                         : PyList_GetItem(sequence.ptr(), index);
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

// A vector that a call borrows from its thread: it grows to the largest call and then allocates no more. A
// call that begins inside another one, from Python code that torch runs, finds none and takes its own.
template <typename T>
class Lent {
  public:
    Lent() : values_(std::move(kept())) {}
    ~Lent() { kept() = std::move(values_); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    std::vector<T>& operator*() { return values_; }
    std::vector<T>* operator->() { return &values_; }

  private:
    static std::vector<T>& kept() {
        thread_local std::vector<T> values;
        return values;
    }
    std::vector<T> values_;
};

// A contiguous 1-D tensor; `size` < 0 accepts any length.
bool read_flat(Object object, std::int64_t size, TensorView& view);

// As read_flat, with one of the float dtypes, or with exactly `dtype`.
bool read_floats(Object object, std::int64_t size, TensorView& view);
bool read_flat_of(Object object, std::int64_t size, DType dtype, TensorView& view);

// None or a one-element tensor. None leaves `value` alone.
bool read_scale(Object object, float& value);
bool read_skip(Object object, bool& skip);

// fp64 [2].
bool read_norm(Object object, double*& norm);

// Python's own numbers, finite. True and False are no integers here, and integers no flags.
bool read_number(Object object, float& value);
bool read_flag(Object object, bool& value);
bool read_integer(Object object, std::int64_t& value);

// None, or a seed for stochastic rounding; `start` a multiple of `multiple`, `step` from 1.
bool read_rounding(Object seed, Object start, Object step, std::int64_t multiple, Rounding& rounding);

// A tuple of numbers, rounded once.
template <int kCount>
bool read_coefficients(Object tuple, float (&values)[kCount]) {
    if (length_of(tuple) != kCount) return false;
    for (int i = 0; i < kCount; ++i) {
        if (!read_number(item_of(tuple, i), values[i])) return false;
    }
    return true;
}

// Tensors of a list or tuple, None where a place is empty, addressed as the regions of a bucket want them.
bool read_tensors(Object list, const Region* regions, std::int64_t region_count, std::int64_t slot_count,
                  std::vector<Strided>& tensors);

bool read_bucket(Object object, std::int64_t world, std::int64_t width, Bucket& bucket);

}  // namespace overlap
