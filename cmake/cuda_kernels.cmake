# The CUDA C++ kernels: csrc/cuda/kernels.cu -> overlap/_kernels.fatbin. Optional: without nvcc the package installs all
# the same, and Triton compiles its own. OVERLAP_CUDA: AUTO builds it if it can, ON insists, OFF does not.
# nvcc is run directly: CMake's CUDA language would link what is only loaded (overlap._cuda, CuPy).

set(OVERLAP_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
string(TOUPPER "${OVERLAP_CUDA}" OVERLAP_CUDA)
if(NOT OVERLAP_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "OVERLAP_CUDA must be AUTO, ON or OFF, but got ${OVERLAP_CUDA}; use one of these words")
endif()

# A macro, so that return() leaves this file.
macro(install_without_cuda reason cure)
    if(OVERLAP_CUDA STREQUAL "ON")
        message(FATAL_ERROR "OVERLAP_CUDA=ON must find what it builds with, but got ${reason}; ${cure}")
    endif()
    message(STATUS "overlap: no CUDA C++ kernels, Triton instead (${reason})")
    return()
endmacro()

if(OVERLAP_CUDA STREQUAL "OFF")
    install_without_cuda("OVERLAP_CUDA=OFF" "use AUTO")
endif()

find_program(OVERLAP_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
if(NOT OVERLAP_NVCC)
    install_without_cuda("no nvcc" "install the CUDA toolkit, set CUDA_HOME, or use AUTO")
endif()

# SASS for Ampere, Hopper and Blackwell (each serves its whole generation), as far as this nvcc knows them, and PTX of
# the newest for what comes later.
execute_process(COMMAND "${OVERLAP_NVCC}" --list-gpu-code OUTPUT_VARIABLE known ERROR_VARIABLE problem)
set(gencode "")
foreach(arch 80 90 100)
    if(known MATCHES "sm_${arch}\n")
        list(APPEND gencode -gencode "arch=compute_${arch},code=sm_${arch}")
        set(newest ${arch})
    endif()
endforeach()
if(NOT gencode)
    install_without_cuda("an nvcc that knows neither sm_80, sm_90 nor sm_100" "install CUDA 11.7 or later, or use AUTO")
endif()
list(APPEND gencode -gencode "arch=compute_${newest},code=compute_${newest}")

# No contraction: products are rounded before they are added, so that every face gives the same bits.
set(nvcc_flags -fatbin -std=c++17 -O3 -fmad=false -t4 -Xfatbin -compress-all)

# nvcc without a host compiler that it accepts fails here, and not in the build.
set(probe "${CMAKE_CURRENT_BINARY_DIR}/cuda_probe.cu")
file(WRITE "${probe}" "#include <cuda_bf16.h>\n__global__ void probe(__nv_bfloat16* x) { *x = __float2bfloat16_rn(1.0f); }\n")
execute_process(
    COMMAND "${OVERLAP_NVCC}" ${nvcc_flags} ${gencode} "${probe}" -o "${probe}.fatbin"
    RESULT_VARIABLE status OUTPUT_VARIABLE problem ERROR_VARIABLE problem)
if(NOT status EQUAL 0)
    string(STRIP "${problem}" problem)
    install_without_cuda("an nvcc that fails: ${problem}" "install a host compiler that it accepts, or use AUTO")
endif()

file(GLOB kernel_sources CONFIGURE_DEPENDS csrc/cuda/*.cu csrc/cuda/*.cuh csrc/cuda/arguments.h)
set(fatbin "${CMAKE_CURRENT_BINARY_DIR}/_kernels.fatbin")
add_custom_command(
    OUTPUT "${fatbin}"
    COMMAND "${OVERLAP_NVCC}" ${nvcc_flags} ${gencode} "${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/kernels.cu" -o "${fatbin}"
    DEPENDS ${kernel_sources} COMMENT "CUDA kernels" VERBATIM)
add_custom_target(cuda_kernels ALL DEPENDS "${fatbin}")
install(FILES "${fatbin}" DESTINATION overlap)
message(STATUS "overlap: CUDA C++ kernels by ${OVERLAP_NVCC}, newest sm_${newest}")
