// One plain loop, compiled for three levels of x86 and chosen when the library is loaded.
// All levels give the same bits: -ffp-contract=off keeps a wider one from fusing multiply and add.
#pragma once

#include <cstdint>  // defines __GLIBC__, without which the loader cannot choose

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && __GNUC__ >= 12
#define OVERLAP_X86
#define OVERLAP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OVERLAP_CLONES
#endif

// What a cloned loop calls must become part of it, or it would run at the level of its own file.
#if defined(__GNUC__)
#define OVERLAP_INLINE inline __attribute__((always_inline))
#else
#define OVERLAP_INLINE inline
#endif
