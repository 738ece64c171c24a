// The skeleton of every update rule:
//
//   grad (any float) --widen--> g  \                             / --> states (fp32 in place, or bf16 again)
//   states (fp32, or bf16 widened) -- rule(weight, moments, g) --
//                                                                \ --narrow--> shard (the next gather's
//                                                                input)
//
// One loop does all of it, so every byte crosses the memory bus once each way. Only bf16 states pass through
// a block of floats that stays in L1, because they may be rounded stochastically.
//
// A rule is a struct with kStates (weight and moments) and operator()(float* states, float gradient) for one
// element.
#pragma once

#include <algorithm>
#include <type_traits>

#include "blocks.h"
#include "clones.h"
#include "ops.h"
#include "rounding.h"
#include "threads.h"

namespace overlap {

struct NoShard {};

template <typename Rule, typename Grad, typename Shard>
OVERLAP_CLONES void update_loop(Rule rule, float* __restrict weight, float* __restrict first,
                                float* __restrict second, const Grad* __restrict grad,
                                Shard* __restrict shard, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        float states[3] = {weight[i], first[i], 0.0f};
        if constexpr (Rule::kStates == 3) states[2] = second[i];
        rule(states, widen(grad[i]));
        weight[i] = states[0];
        first[i] = states[1];
        if constexpr (Rule::kStates == 3) second[i] = states[2];
        if constexpr (!std::is_same_v<Shard, NoShard>) narrow(states[0], shard[i]);
    }
}

// Elements [index, index + count), whose states are `states` as floats.
template <typename Rule>
void update_span(const Update& update, const Rule& rule, float* const* states, std::int64_t index,
                 std::int64_t count) {
    visit_float(update.grad.dtype, [&](auto grad_type) {
        const auto* grad = static_cast<const decltype(grad_type)*>(update.grad.data) + index;
        const auto run = [&](auto* shard) {
            update_loop(rule, states[0], states[1], states[Rule::kStates - 1], grad, shard, count);
        };
        if (update.shard.data == nullptr) return run(static_cast<NoShard*>(nullptr));
        visit_float(update.shard.dtype, [&](auto shard_type) {
            run(static_cast<decltype(shard_type)*>(update.shard.data) + index);
        });
    });
}

// Writes the block of a bf16 state back; fp32 states were updated where they are.
inline void store_state(const Update& update, int state, const float* values, std::int64_t index,
                        std::int64_t count) {
    const Array& array = update.states[state];
    if (array.dtype == DType::fp32) return;
    if (!update.rounding.stochastic) return narrow(array.dtype, values, array.data, index, count);
    alignas(32) std::uint16_t random[kBlock];
    random_bits(update.rounding, static_cast<std::uint32_t>(state), index, count, random);
    narrow_stochastic(values, random, static_cast<Bf16*>(array.data) + index, count);
}

template <typename Rule>
void update_block(const Update& update, const Rule& rule, std::int64_t index, std::int64_t count) {
    float scratch[Rule::kStates][kBlock];
    float* states[Rule::kStates];
    for (int s = 0; s < Rule::kStates; ++s) {
        const Array& array = update.states[s];
        states[s] = const_cast<float*>(widen(array.dtype, array.data, index, count, scratch[s]));
    }
    update_span(update, rule, states, index, count);
    for (int s = 0; s < Rule::kStates; ++s) store_state(update, s, states[s], index, count);
}

template <typename Rule>
void update_all(const Update& update, int threads, const Rule& rule) {
    parallel_for(update.size, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += kBlock)
            update_block(update, rule, i, std::min(kBlock, end - i));
    });
}

}  // namespace overlap
