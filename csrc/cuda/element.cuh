// Element types, their conversions (exact up, nearest even down), and vectors of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "arguments.h"

namespace overlap::cuda {

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }

template <typename T>
__device__ __forceinline__ T narrow(float value) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        return __float2bfloat16_rn(value);
    } else if constexpr (std::is_same_v<T, __half>) {
        return __float2half_rn(value);
    } else {
        return value;
    }
}

// Addresses that come out of a table are generic to the compiler, which then neither vectorises nor uses LDG.
template <typename T>
__device__ __forceinline__ T* global(T* pointer) {
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}

template <typename T>
__device__ __forceinline__ bool is_aligned(const T* pointer) {
    return (reinterpret_cast<std::uintptr_t>(pointer) & 15) == 0;
}

// Consecutive elements in registers, as the words that memory moves: taken apart only where they are used.
template <typename T, int kCount>
struct Unit {
    static constexpr int kBytes = sizeof(T) * kCount;
    static constexpr int kHalves = sizeof(T) == 2 ? 2 : 1;  // elements per word

    std::uint32_t words[(kBytes + 3) / 4];

    __device__ __forceinline__ T get(int index) const {
        const std::uint32_t bits = words[index / kHalves] >> (16 * (index % kHalves));
        T value;
        std::memcpy(&value, &bits, sizeof(T));  // the low end
        return value;
    }
    __device__ __forceinline__ void set(int index, T value) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(T));
        std::uint32_t& word = words[index / kHalves];
        word = index % kHalves == 0 ? bits : word | bits << 16;  // in order
    }
};

template <int kBytes>
using Word = std::conditional_t<
    kBytes % 16 == 0, uint4,
    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, std::uint32_t, std::uint16_t>>>;

template <int kCount, typename T>
__device__ __forceinline__ Unit<T, kCount> load(const T* pointer) {
    using Part = Word<Unit<T, kCount>::kBytes>;
    Unit<T, kCount> unit;
#pragma unroll
    for (int i = 0; i < Unit<T, kCount>::kBytes / static_cast<int>(sizeof(Part)); ++i) {
        const Part part = global(reinterpret_cast<const Part*>(pointer))[i];
        std::memcpy(unit.words + i * sizeof(Part) / 4, &part, sizeof(Part));
    }
    return unit;
}

// One store instruction: nvcc would take an assignment of assembled words apart again. No kernel reads what
// it has written, so the compiler need not know that memory changes.
__device__ __forceinline__ void store_word(uint4* pointer, uint4 word) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w));
#else
    *pointer = word;
#endif
}

__device__ __forceinline__ void store_word(uint2* pointer, uint2 word) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(pointer), "r"(word.x), "r"(word.y));
#else
    *pointer = word;
#endif
}

template <typename Part>
__device__ __forceinline__ void store_word(Part* pointer, Part word) {
    *global(pointer) = word;
}

template <int kCount, typename T>
__device__ __forceinline__ void store(T* pointer, const Unit<T, kCount>& unit) {
    using Part = Word<Unit<T, kCount>::kBytes>;
#pragma unroll
    for (int i = 0; i < Unit<T, kCount>::kBytes / static_cast<int>(sizeof(Part)); ++i) {
        Part part;
        std::memcpy(&part, unit.words + i * sizeof(Part) / 4, sizeof(Part));
        store_word(reinterpret_cast<Part*>(pointer) + i, part);
    }
}

// Calls body(typed pointer) for a word of a tensor table.
template <typename Body>
__device__ __forceinline__ void with_tensor(std::uint64_t word, const Body& body) {
    const std::uint64_t address = word & kAddressMask;
    switch (word >> kCodeShift) {
        case kBf16:
            return body(reinterpret_cast<__nv_bfloat16*>(address));
        case kFp16:
            return body(reinterpret_cast<__half*>(address));
        default:
            return body(reinterpret_cast<float*>(address));
    }
}

}  // namespace overlap::cuda
