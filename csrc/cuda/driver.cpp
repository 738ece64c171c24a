#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace overlap::cuda {
namespace {

constexpr const char* kNoDriver = "install an NVIDIA driver, or run these ops through Triton";

[[noreturn]] void fail(const std::string& subject, const char* rule, const std::string& got,
                       const char* cure) {
    throw std::runtime_error(subject + " must " + rule + ", but got " + got + "; " + cure);
}

template <typename Pointer>
void find(void* library, const std::string& path, const char* name, Pointer& function) {
    function = reinterpret_cast<Pointer>(dlsym(library, name));
    if (function == nullptr) fail(path, "be a CUDA driver", std::string("no function ") + name, kNoDriver);
}

}  // namespace

Driver::Driver(const std::string& library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) fail(library, "open", dlerror(), kNoDriver);
    find(handle, library, "cuInit", initialise_);
    find(handle, library, "cuGetErrorName", error_name_);
    find(handle, library, "cuGetErrorString", error_text_);
    find(handle, library, "cuDevicePrimaryCtxRetain", device_retain);
    find(handle, library, "cuCtxGetCurrent", context_current);
    find(handle, library, "cuCtxPushCurrent_v2", context_push);
    find(handle, library, "cuCtxPopCurrent_v2", context_pop);
    find(handle, library, "cuModuleLoadData", module_load);
    find(handle, library, "cuModuleGetFunction", module_function);
    find(handle, library, "cuLaunchKernel", launch);
    check(initialise_(0), "cuInit", kNoDriver);
}

void Driver::check(Result result, const std::string& subject, const char* cure) const {
    if (result == 0) return;
    const char *name = nullptr, *text = nullptr;
    error_name_(result, &name);
    error_text_(result, &text);
    std::string got = name == nullptr ? "error " + std::to_string(result) : name;
    if (text != nullptr) got += std::string(" (") + text + ")";
    fail(subject, "succeed", got, cure);
}

}  // namespace overlap::cuda
