// Loads the fatbin once per device and launches its kernels on a given stream. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "driver.h"

namespace overlap::cuda {

// Where a kernel runs. The device's primary context is the one that torch uses.
struct Place {
    Device device;
    std::uintptr_t stream;
};

// Addresses of tensors, as the kernels take them.
struct Words {
    const std::uint64_t* first;
    std::int64_t count;
};

class Launcher {
  public:
    // `image`: path of the fatbin. Throws std::runtime_error where driver or image cannot be used.
    Launcher(const std::string& library, const std::string& image);

    // Loads the kernels on a device, so that what may fail fails now.
    void load(Device device);

    // Each copies `words` into `arguments` and launches. The pointers are addresses on the device.
    void move(const char* kernel, Place place, MoveArguments& arguments, Words words, unsigned blocks,
              unsigned rows);
    void reduce_sum(const char* kernel, Place place, ReduceArguments& arguments, Words words);
    void sum_squares(const char* kernel, Place place, SquareArguments& arguments);
    void finish(Place place, FinishArguments& arguments);

  private:
    struct Loaded {
        Context context = nullptr;
        Module module = nullptr;
        std::map<std::string, Function, std::less<>> functions;
    };

    std::pair<Context, Function> find(const char* kernel, Device device);
    void launch(const char* kernel, Place place, unsigned grid_x, unsigned grid_y, void* arguments);

    Driver driver_;
    std::vector<char> image_;
    std::mutex mutex_;
    std::map<Device, Loaded> devices_;
};

}  // namespace overlap::cuda
