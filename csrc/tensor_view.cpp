#include "tensor_view.h"

#include <nanobind/nanobind.h>

#include <stdexcept>

namespace nb = nanobind;

namespace overlap {
namespace {

// The part of DLPack's stable ABI that is read here (dmlc/dlpack, include/dlpack/dlpack.h).
struct DLTensor {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t ndim;
    std::uint8_t code, bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

struct ExchangeApi {
    std::uint32_t major, minor;
    ExchangeApi* older;
    void* allocator;
    void* managed_from_object;
    void* managed_to_object;
    int (*tensor_from_object)(void* object, DLTensor* out);
    void* current_work_stream;
};

constexpr std::uint32_t kMajor = 1;
constexpr std::int32_t kCpu = 1, kPinned = 3;
constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kFloat8E4M3fn = 10;

const ExchangeApi* api = nullptr;
PyTypeObject* tensor_type = nullptr;
PyTypeObject* parameter_type = nullptr;
PyObject* is_neg = nullptr;  // torch.Tensor.is_neg

bool known_dtype(std::uint8_t code, std::uint8_t bits, DType& dtype) {
    switch (code << 8 | bits) {
        case kFloat << 8 | 32:
            dtype = DType::fp32;
            return true;
        case kFloat << 8 | 64:
            dtype = DType::fp64;
            return true;
        case kFloat << 8 | 16:
            dtype = DType::fp16;
            return true;
        case kBfloat << 8 | 16:
            dtype = DType::bf16;
            return true;
        case kInt << 8 | 8:
            dtype = DType::int8;
            return true;
        case kInt << 8 | 32:
            dtype = DType::int32;
            return true;
        case kBool << 8 | 8:
            dtype = DType::boolean;
            return true;
        case kUInt << 8 | 8:
            dtype = DType::uint8;
            return true;
        case kFloat8E4M3fn << 8 | 8:
            dtype = DType::e4m3;
            return true;
        default:
            return false;
    }
}

// Types live as long as torch, which this process never unloads: the references are kept for good.
PyTypeObject* type_of(nb::handle module, const char* name) {
    return reinterpret_cast<PyTypeObject*>(nb::object(module.attr(name)).release().ptr());
}

}  // namespace

std::int64_t TensorView::numel() const {
    std::int64_t count = 1;
    for (std::int32_t dim = 0; dim < rank; ++dim) count *= sizes[dim];
    return count;
}

bool TensorView::contiguous() const {
    std::int64_t expected = 1;
    for (std::int32_t dim = rank - 1; dim >= 0; --dim) {
        if (sizes[dim] == 0) return true;
        if (sizes[dim] != 1 && strides[dim] != expected) return false;
        expected *= sizes[dim];
    }
    return true;
}

void load_tensor_api() {
    const nb::module_ torch = nb::module_::import_("torch");
    tensor_type = type_of(torch, "Tensor");
    parameter_type = type_of(nb::module_::import_("torch.nn"), "Parameter");
    is_neg = nb::object(torch.attr("Tensor").attr("is_neg")).release().ptr();
    const nb::object capsule =
        nb::handle(reinterpret_cast<PyObject*>(tensor_type)).attr("__dlpack_c_exchange_api__");
    const auto* found =
        static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (found == nullptr) throw nb::python_error();
    while (found != nullptr && found->major != kMajor) found = found->older;
    if (found == nullptr)
        throw std::runtime_error(
            "torch must offer version 1 of DLPack's exchange API; use torch 2.11 to 2.14");
    api = found;
}

bool read_tensor(PyObject* object, TensorView& view) {
    if (Py_TYPE(object) != tensor_type && Py_TYPE(object) != parameter_type) return false;
    DLTensor tensor;
    if (api->tensor_from_object(object, &tensor) != 0) {
        PyErr_Clear();  // a layout or dtype that DLPack does not know: overlap/ops/check says what is wrong
                        // with it
        return false;
    }
    const bool on_cpu = tensor.device_type == kCpu || tensor.device_type == kPinned;
    if (!on_cpu || tensor.lanes != 1 || !known_dtype(tensor.code, tensor.bits, view.dtype)) return false;
    view.rank = tensor.ndim;
    view.sizes = tensor.shape;
    view.strides = tensor.strides;
    if (tensor.data == nullptr)
        return view.numel() == 0;  // a storage that was let go, or zeros that have none
    view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    return true;
}

bool lazily_negated(PyObject* object) {
    PyObject* flag = PyObject_CallFunctionObjArgs(is_neg, object, nullptr);
    if (flag == nullptr) PyErr_Clear();  // then it is not known, and must not be read
    Py_XDECREF(flag);
    return flag != Py_False;
}

}  // namespace overlap
