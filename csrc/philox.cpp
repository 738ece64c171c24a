#include "philox.h"

#include <bit>

#include "clones.h"

#ifdef OVERLAP_X86
#include <immintrin.h>
#endif

namespace overlap {
namespace {

constexpr std::uint64_t kFirst = 0xD2511F53u, kSecond = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

// Little endian: the low half of a word belongs to the even element.
static_assert(std::endian::native == std::endian::little);

struct Counter {
    std::uint64_t group;
    std::uint32_t step, stream;
    std::uint64_t seed;
};

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
void fill_plain(const Counter& counter, std::uint64_t* out, std::int64_t groups) {
    for (std::int64_t i = 0; i < groups; ++i) {
        const std::uint64_t group = counter.group + static_cast<std::uint64_t>(i);
        auto c0 = static_cast<std::uint32_t>(group), c1 = static_cast<std::uint32_t>(group >> 32);
        auto k0 = static_cast<std::uint32_t>(counter.seed),
             k1 = static_cast<std::uint32_t>(counter.seed >> 32);
        std::uint32_t c2 = counter.step, c3 = counter.stream;
        for (int round = 0; round < kRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
            const std::uint64_t first = kFirst * c0, second = kSecond * c2;
            c0 = static_cast<std::uint32_t>(second >> 32) ^ c1 ^ k0;
            c2 = static_cast<std::uint32_t>(first >> 32) ^ c3 ^ k1;
            c1 = static_cast<std::uint32_t>(second);
            c3 = static_cast<std::uint32_t>(first);
        }
        out[2 * i] = c0 | std::uint64_t{c1} << 32;
        out[2 * i + 1] = c2 | std::uint64_t{c3} << 32;
    }
}

#ifdef OVERLAP_X86
// Eight counters at once. By hand, the one loop here that is: compilers do not find the 32 x 32 -> 64 bit
// product that this lives on, and take three times as long. Each word lies in the low half of 64 bits; what
// products leave in the high half, the next product ignores. Two vectors side by side hide the latency of
// one.
struct Lanes {
    static constexpr int kVectors = 2, kGroups = 4 * kVectors;
    __m256i c[4][kVectors];
};

__attribute__((target("avx2"))) inline void store(const Lanes& lanes, std::uint64_t* out) {
    const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
    for (int v = 0; v < Lanes::kVectors; ++v) {
        const __m256i front =
            _mm256_or_si256(_mm256_and_si256(lanes.c[0][v], low), _mm256_slli_epi64(lanes.c[1][v], 32));
        const __m256i back =
            _mm256_or_si256(_mm256_and_si256(lanes.c[2][v], low), _mm256_slli_epi64(lanes.c[3][v], 32));
        const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
        auto* place = reinterpret_cast<__m256i*>(out) + 2 * v;
        _mm256_storeu_si256(place, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256(place + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

__attribute__((target("avx2"))) inline void run_round(Lanes& lanes, __m256i key0, __m256i key1) {
    const __m256i first_factor = _mm256_set1_epi64x(kFirst), second_factor = _mm256_set1_epi64x(kSecond);
    for (int v = 0; v < Lanes::kVectors; ++v) {
        const __m256i first = _mm256_mul_epu32(first_factor, lanes.c[0][v]);
        const __m256i second = _mm256_mul_epu32(second_factor, lanes.c[2][v]);
        lanes.c[0][v] =
            _mm256_xor_si256(_mm256_srli_epi64(second, 32), _mm256_xor_si256(lanes.c[1][v], key0));
        lanes.c[2][v] = _mm256_xor_si256(_mm256_srli_epi64(first, 32), _mm256_xor_si256(lanes.c[3][v], key1));
        lanes.c[1][v] = second;
        lanes.c[3][v] = first;
    }
}

__attribute__((target("avx2"))) void fill_avx2(const Counter& counter, std::uint64_t* out,
                                               std::int64_t groups) {
    __m256i keys[kRounds][2];
    auto k0 = static_cast<std::uint32_t>(counter.seed), k1 = static_cast<std::uint32_t>(counter.seed >> 32);
    for (auto& key : keys) {
        key[0] = _mm256_set1_epi64x(k0);
        key[1] = _mm256_set1_epi64x(k1);
        k0 += kWeyl0;
        k1 += kWeyl1;
    }
    std::int64_t i = 0;
    for (; i + Lanes::kGroups <= groups; i += Lanes::kGroups) {
        Lanes lanes;
        for (int v = 0; v < Lanes::kVectors; ++v) {
            const auto first = static_cast<std::int64_t>(counter.group) + i + 4 * v;
            const __m256i group = _mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_set_epi64x(3, 2, 1, 0));
            lanes.c[0][v] = group;
            lanes.c[1][v] = _mm256_srli_epi64(group, 32);
            lanes.c[2][v] = _mm256_set1_epi64x(counter.step);
            lanes.c[3][v] = _mm256_set1_epi64x(counter.stream);
        }
        for (const auto& key : keys) run_round(lanes, key[0], key[1]);
        store(lanes, out + 2 * i);
    }
    const std::uint64_t rest = counter.group + static_cast<std::uint64_t>(i);
    fill_plain({rest, counter.step, counter.stream, counter.seed}, out + 2 * i, groups - i);
}
#endif

void fill(const Counter& counter, std::uint64_t* out, std::int64_t groups) {
#ifdef OVERLAP_X86
    static const bool has_avx2 = __builtin_cpu_supports("avx2");
    if (has_avx2) return fill_avx2(counter, out, groups);
#endif
    fill_plain(counter, out, groups);
}

}  // namespace

void random_bits(const Rounding& rounding, std::uint32_t stream, std::int64_t index, std::int64_t count,
                 std::uint16_t* bits) {
    const auto group = static_cast<std::uint64_t>((rounding.start + index) / kPerPhilox);
    fill({group, rounding.step, stream, rounding.seed}, reinterpret_cast<std::uint64_t*>(bits),
         (count + kPerPhilox - 1) / kPerPhilox);
}

}  // namespace overlap
