// The few functions of the CUDA driver that a launch needs, found at run time: no CUDA header, no linking.
#pragma once

#include <cstdint>
#include <string>

namespace overlap::cuda {

// Handles as cuda.h declares them: opaque pointers, and ints.
using Result = int;
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;

class Driver {
  public:
    // Opens the library (libcuda.so.1) and initialises it; throws std::runtime_error. The library stays open.
    explicit Driver(const std::string& library);

    // Throws std::runtime_error unless `result` is success: "subject must succeed, but got ...; cure".
    void check(Result result, const std::string& subject, const char* cure) const;

    Result (*device_retain)(Context*, Device);
    Result (*context_current)(Context*);
    Result (*context_push)(Context);
    Result (*context_pop)(Context*);
    Result (*module_load)(Module*, const void* image);
    Result (*module_function)(Function*, Module, const char* name);
    Result (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream, void** arguments,
                     void** extra);

  private:
    Result (*initialise_)(unsigned flags);
    Result (*error_name_)(Result, const char**);
    Result (*error_text_)(Result, const char**);
};

}  // namespace overlap::cuda
