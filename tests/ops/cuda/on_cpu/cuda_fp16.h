// IEEE binary16 for tests on a CPU, by the compiler's own type: round to nearest even.
#pragma once

using __half = _Float16;

inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half __float2half_rn(float value) { return static_cast<__half>(value); }
