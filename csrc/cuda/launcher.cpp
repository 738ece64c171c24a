#include "launcher.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "../check.h"

namespace overlap::cuda {
namespace {

constexpr const char* kRebuild = "reinstall the package where nvcc is found";

// The image must be whole: the driver reads as far as its header says.
std::vector<char> read_image(const std::string& path) {
    struct Header {
        std::uint32_t magic;
        std::uint16_t version, header_bytes;
        std::uint64_t payload_bytes;
    } header;
    std::ifstream file(path, std::ios::binary);
    std::vector<char> image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const bool has_header = image.size() >= sizeof(header);
    if (has_header) std::memcpy(&header, image.data(), sizeof(header));
    if (!has_header || header.magic != 0xBA55ED50u ||
        image.size() < header.header_bytes + header.payload_bytes) {
        throw std::runtime_error(path + " must be a whole fatbin, but got " + std::to_string(image.size()) +
                                 " bytes that are none; " + kRebuild);
    }
    return image;
}

void copy_words(Words words, std::uint64_t* into) {
    require(words.count >= 0 && words.count <= kCapacity, "addresses", "fit into one launch (505)",
            words.count, "split them");
    std::copy_n(words.first, words.count, into);
}

unsigned tiles(std::int64_t size) {
    const std::int64_t count = (size + kTile - 1) / kTile;
    require(size > 0 && count <= std::numeric_limits<std::int32_t>::max(), "size",
            "make at least one tile and fit a grid", size, "split the tensor");
    return static_cast<unsigned>(count);
}

// Makes a context current while it lives, if it is not already.
class Current {
  public:
    Current(const Driver& driver, Context context) : driver_(driver) {
        Context current = nullptr;
        driver_.check(driver_.context_current(&current), "cuCtxGetCurrent",
                      "use torch.cuda before these ops");
        if (current == context) return;
        driver_.check(driver_.context_push(context), "cuCtxPushCurrent", "use torch.cuda before these ops");
        pushed_ = true;
    }
    ~Current() {
        Context popped;
        if (pushed_) driver_.context_pop(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

  private:
    const Driver& driver_;
    bool pushed_ = false;
};

}  // namespace

Launcher::Launcher(const std::string& library, const std::string& image)
    : driver_(library), image_(read_image(image)) {}

std::pair<Context, Function> Launcher::find(const char* kernel, Device device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Loaded& loaded = devices_[device];
    if (const auto known = loaded.functions.find(kernel); known != loaded.functions.end()) {
        return {loaded.context, known->second};
    }
    if (loaded.context == nullptr) {
        driver_.check(driver_.device_retain(&loaded.context, device), "cuDevicePrimaryCtxRetain",
                      "pass the index of a device that torch.cuda sees");
    }
    const Current current(driver_, loaded.context);
    if (loaded.module == nullptr) {
        driver_.check(driver_.module_load(&loaded.module, image_.data()), "cuModuleLoadData",
                      "update the driver, or build with the CUDA toolkit of its version");
    }
    Function function = nullptr;
    driver_.check(driver_.module_function(&function, loaded.module, kernel),
                  std::string("cuModuleGetFunction(") + kernel + ")", kRebuild);
    loaded.functions.emplace(kernel, function);
    return {loaded.context, function};
}

void Launcher::load(Device device) { find("finish", device); }

void Launcher::launch(const char* kernel, Place place, unsigned grid_x, unsigned grid_y, void* arguments) {
    const auto [context, function] = find(kernel, place.device);
    const Current current(driver_, context);
    void* parameters[] = {arguments};
    const Result result = driver_.launch(function, grid_x, grid_y, 1, kThreads, 1, 1, 0,
                                         reinterpret_cast<Stream>(place.stream), parameters, nullptr);
    if (result == 0) return;
    driver_.check(result, std::string("cuLaunchKernel(") + kernel + ")",
                  "run with CUDA_LAUNCH_BLOCKING=1 to find the call that failed first");
}

void Launcher::move(const char* kernel, Place place, MoveArguments& arguments, Words words, unsigned blocks,
                    unsigned rows) {
    require(rows <= 65535, "bucket", "have at most 65535 rows", rows, "lay it out for fewer ranks");
    copy_words(words, arguments.tensors);
    launch(kernel, place, blocks, rows, &arguments);
}

void Launcher::reduce_sum(const char* kernel, Place place, ReduceArguments& arguments, Words words) {
    copy_words(words, arguments.rows);
    std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(arguments.out);
    for (std::int64_t i = 0; i < words.count; ++i) bits |= words.first[i];
    arguments.count = static_cast<std::int32_t>(words.count);
    arguments.aligned = bits % 16 == 0;
    launch(kernel, place, tiles(arguments.size), 1, &arguments);
}

void Launcher::sum_squares(const char* kernel, Place place, SquareArguments& arguments) {
    launch(kernel, place, tiles(arguments.size), 1, &arguments);
}

void Launcher::finish(Place place, FinishArguments& arguments) { launch("finish", place, 1, 1, &arguments); }

}  // namespace overlap::cuda
