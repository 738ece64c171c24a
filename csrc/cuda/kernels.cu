// One translation unit, so that nvcc makes one fatbin of all kernels.
#include "grad_norm.cu"
#include "pack.cu"
#include "reduce_sum.cu"
#include "unpack.cu"
