// Reads a torch.Tensor in about 40 ns without torch's headers, through the table of functions that torch
// publishes as torch.Tensor.__dlpack_c_exchange_api__ (DLPack 1.2 and later; torch 2.11 and later).
#pragma once

#include <Python.h>

#include <cstdint>

#include "dtype.h"

namespace overlap {

// A plain tensor in CPU memory. Borrowed: valid while the tensor lives and keeps its shape.
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::fp32;
    std::int32_t rank = 0;
    const std::int64_t* sizes = nullptr;
    const std::int64_t* strides = nullptr;  // in elements

    std::int64_t numel() const;
    bool contiguous() const;
    bool flat(std::int64_t size) const {
        return rank == 1 && sizes[0] == size && (strides[0] == 1 || size <= 1);
    }
};

// Finds torch's table and types; throws if this torch has none.
void load_tensor_api();

// False where `object` is no plain torch.Tensor (or Parameter) on the CPU with a dtype the ops know.
bool read_tensor(PyObject* object, TensorView& view);

// Whether torch negates the tensor whenever it is read: its memory holds the opposite. Views of complex
// tensors are such, which lie in every other place; asked for tensors that do, and for single numbers. (One
// that was made to lie back to back, by as_strided, is read as it lies.)
bool lazily_negated(PyObject* object);

}  // namespace overlap
