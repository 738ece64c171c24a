// Stands in for libcuda.so.1 in tests: the functions that overlap's launcher uses, with the driver's own
// rules about contexts and handles. It runs the kernels' own source on the CPU (on_cpu/), with device memory
// = memory, and keeps what was launched for the test to read. The functions named fake_* are the test's.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fibers.h"
#include "kernel.h"
#include "kernels.cu"

Index threadIdx, blockIdx;

void __syncthreads() { Fibers::instance().wait(); }

namespace {

using Kernel = void (*)(const void*);

enum Result {
    kSuccess = 0,
    kInvalidValue = 1,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kInvalidHandle = 400,
    kNotFound = 500,
    kMisalignedAddress = 716,
    kLaunchFailure = 719,
};

struct Loaded {
    std::uintptr_t context;
};
struct Function {
    std::string name;
    Kernel kernel;
    Loaded* module;
};

struct Launch {
    std::string name;
    unsigned grid_x, grid_y, threads;
    std::uintptr_t stream, context;
    std::vector<char> arguments;
};

// Vectors at addresses that are no multiple of their size; counted by the compiler's checks
// (-fsanitize=alignment).
std::size_t misaligned = 0;

constexpr int kDevices = 2;
constexpr std::uintptr_t kPrimary = 0x1000;  // the primary context of device 0

std::vector<std::uintptr_t> contexts;  // the stack of current ones
std::vector<Launch> launches;
std::map<std::string, int> failures;  // by function: what its next call returns

int planned(const char* function) {
    const auto found = failures.find(function);
    if (found == failures.end()) return kSuccess;
    const int result = found->second;
    failures.erase(found);
    return result;
}

std::size_t argument_bytes(const std::string& name) {
    if (name == "finish") return sizeof(overlap::cuda::FinishArguments);
    if (name.rfind("sum_squares", 0) == 0) return sizeof(overlap::cuda::SquareArguments);
    if (name.rfind("reduce_sum", 0) == 0) return sizeof(overlap::cuda::ReduceArguments);
    return sizeof(overlap::cuda::MoveArguments);
}

Kernel find_kernel(const char* name) {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(&find_kernel), &self);
    return reinterpret_cast<Kernel>(dlsym(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), name));
}

int run(const Launch& launch, Kernel kernel) {
    misaligned = 0;
    const void* arguments = launch.arguments.data();
    for (blockIdx.y = 0; blockIdx.y < launch.grid_y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < launch.grid_x; ++blockIdx.x) {
            Fibers::instance().run(launch.threads, [&] { kernel(arguments); });
        }
    }
    return misaligned == 0 ? kSuccess : kMisalignedAddress;
}

}  // namespace

extern "C" {

// Called where a check fails, in place of the sanitizer's own library; the access itself would end the
// process.
void __ubsan_handle_type_mismatch_v1(void*, void*) {
    ++misaligned;
    Fibers::instance().fault();
}

int cuInit(unsigned) { return planned("cuInit"); }

int cuGetErrorName(int result, const char** name) {
    static const std::map<int, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                     {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                                     {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
                                                     {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                     {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                     {kNotFound, "CUDA_ERROR_NOT_FOUND"},
                                                     {kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS"},
                                                     {kLaunchFailure, "CUDA_ERROR_LAUNCH_FAILED"}};
    const auto found = names.find(result);
    *name = found == names.end() ? nullptr : found->second;
    return *name == nullptr ? kInvalidValue : kSuccess;
}

int cuGetErrorString(int result, const char** text) {
    *text = result == kLaunchFailure ? "unspecified launch failure" : nullptr;
    return *text == nullptr ? kInvalidValue : kSuccess;
}

int cuDevicePrimaryCtxRetain(std::uintptr_t* context, int device) {
    if (device < 0 || device >= kDevices) return kInvalidDevice;
    *context = kPrimary + static_cast<std::uintptr_t>(device);
    return planned("cuDevicePrimaryCtxRetain");
}

int cuCtxGetCurrent(std::uintptr_t* context) {
    *context = contexts.empty() ? 0 : contexts.back();
    return planned("cuCtxGetCurrent");
}

int cuCtxPushCurrent_v2(std::uintptr_t context) {
    contexts.push_back(context);
    return planned("cuCtxPushCurrent");
}

int cuCtxPopCurrent_v2(std::uintptr_t* context) {
    if (contexts.empty()) return kInvalidContext;
    *context = contexts.back();
    contexts.pop_back();
    return kSuccess;
}

int cuModuleLoadData(Loaded** module, const void* image) {
    if (contexts.empty()) return kInvalidContext;
    const std::uint32_t magic = 0xBA55ED50u;
    if (std::memcmp(image, &magic, sizeof(magic)) != 0) return kInvalidImage;
    *module = new Loaded{contexts.back()};
    return planned("cuModuleLoadData");
}

int cuModuleGetFunction(Function** function, Loaded* module, const char* name) {
    const Kernel kernel = find_kernel(name);
    if (kernel == nullptr) return kNotFound;
    *function = new Function{name, kernel, module};
    return planned("cuModuleGetFunction");
}

int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, std::uintptr_t stream,
                   void** arguments, void** extra) {
    if (contexts.empty()) return kInvalidContext;
    if (function->module->context != contexts.back()) return kInvalidHandle;
    const bool is_valid = grid_x > 0 && grid_y > 0 && grid_y <= 65535 && grid_z == 1 && block_x == 256 &&
                          block_y == 1 && block_z == 1 && shared_bytes == 0 && extra == nullptr;
    if (!is_valid) return kInvalidValue;
    if (const int result = planned("cuLaunchKernel"); result != kSuccess) return result;
    const char* first = static_cast<const char*>(arguments[0]);
    launches.push_back({function->name, grid_x, grid_y, block_x, stream, contexts.back(),
                        std::vector<char>(first, first + argument_bytes(function->name))});
    return run(launches.back(), function->kernel);
}

void fake_reset(std::uintptr_t context) {
    launches.clear();
    failures.clear();
    contexts.clear();
    if (context != 0) contexts.push_back(context);
}

void fake_fail(const char* function, int result) { failures[function] = result; }

std::uintptr_t fake_depth() { return contexts.size(); }

std::uintptr_t fake_launches() { return launches.size(); }

// Runs a kernel once more, with other arguments.
int fake_relaunch(std::uintptr_t index, const char* arguments) {
    Launch launch = launches.at(index);
    launch.arguments.assign(arguments, arguments + launch.arguments.size());
    return run(launch, find_kernel(launch.name.c_str()));
}

// Name, and {grid x, grid y, threads, stream, context, bytes of arguments}.
const char* fake_launch(std::uintptr_t index, std::uintptr_t* numbers, const void** arguments) {
    const Launch& launch = launches.at(index);
    const std::uintptr_t values[] = {launch.grid_x, launch.grid_y,  launch.threads,
                                     launch.stream, launch.context, launch.arguments.size()};
    std::memcpy(numbers, values, sizeof(values));
    *arguments = launch.arguments.data();
    return launch.name.c_str();
}

}  // extern "C"
