#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

// The arguments that every update rule ends with.
struct Common {
    nb::handle grad, shard, grad_scale, skip, seed;
    bool maximize;
    std::int64_t start, step, start_multiple;
};

bool read_common(const Common& common, Update& update, bool& skip) {
    TensorView grad, shard;
    float factor = 1.0f;
    if (!read_floats(common.grad, update.size, grad) || !read_scale(common.grad_scale, factor) ||
        !read_skip(common.skip, skip)) {
        return false;
    }
    if (!common.shard.is_none() && !read_floats(common.shard, update.size, shard)) return false;
    update.grad = {grad.data, grad.dtype};
    update.shard = {shard.data, shard.dtype};
    update.grad_factor = common.maximize ? -factor : factor;
    return common.step >= 1 &&
           read_rounding(common.seed, common.start, common.step, common.start_multiple, update.rounding);
}

bool fp32_or_bf16(const TensorView& view) { return view.dtype == DType::fp32 || view.dtype == DType::bf16; }

// Weights and moments; bf16 weights are rounded stochastically and are themselves what the next gather reads.
bool read_states(std::initializer_list<nb::handle> states, const Common& common, Update& update) {
    update.state_count = 0;
    update.size = -1;
    for (const nb::handle state : states) {
        TensorView view;
        if (!read_floats(state, update.size, view) || !fp32_or_bf16(view)) return false;
        update.size = view.sizes[0];
        update.states[update.state_count++] = {view.data, view.dtype};
    }
    for (int s = 2; s < update.state_count; ++s) {
        if (update.states[s].dtype != update.states[1].dtype) return false;
    }
    return update.states[0].dtype == DType::fp32 || (!common.seed.is_none() && common.shard.is_none());
}

bool call_adamw(nb::handle master, nb::handle exp_avg, nb::handle exp_avg_sq, nb::handle grad,
                nb::handle shard, nb::handle coefficients, nb::handle grad_scale, nb::handle skip_flag,
                bool maximize, nb::handle seed, std::int64_t start, std::int64_t step, int threads) {
    const Common common{grad, shard, grad_scale, skip_flag, seed, maximize, start, step, kPerPhilox};
    Update update;
    bool skip = false;
    float c[7];
    if (!read_states({master, exp_avg, exp_avg_sq}, common, update) || !read_common(common, update, skip) ||
        !read_coefficients(coefficients, c)) {
        return false;
    }
    const Released released(update.size);
    if (!skip) adamw(update, {c[0], c[1], c[2], c[3], c[4], c[5], c[6]}, threads);
    return true;
}

bool call_sgd_momentum(nb::handle master, nb::handle buffer, nb::handle grad, nb::handle shard,
                       nb::handle coefficients, bool nesterov, nb::handle grad_scale, nb::handle skip_flag,
                       bool maximize, nb::handle seed, std::int64_t start, std::int64_t step, int threads) {
    const Common common{grad, shard, grad_scale, skip_flag, seed, maximize, start, step, kPerPhilox};
    Update update;
    bool skip = false;
    float c[5];
    if (!read_states({master, buffer}, common, update) || !read_common(common, update, skip) ||
        !read_coefficients(coefficients, c)) {
        return false;
    }
    const Released released(update.size);
    if (!skip) sgd_momentum(update, {c[0], c[1], c[2], c[3], c[4]}, nesterov, threads);
    return true;
}

bool call_lion(nb::handle master, nb::handle exp_avg, nb::handle grad, nb::handle shard,
               nb::handle coefficients, nb::handle grad_scale, nb::handle skip_flag, bool maximize,
               nb::handle seed, std::int64_t start, std::int64_t step, int threads) {
    const Common common{grad, shard, grad_scale, skip_flag, seed, maximize, start, step, kPerPhilox};
    Update update;
    bool skip = false;
    float c[6];
    if (!read_states({master, exp_avg}, common, update) || !read_common(common, update, skip) ||
        !read_coefficients(coefficients, c)) {
        return false;
    }
    const Released released(update.size);
    if (!skip) lion(update, {c[0], c[1], c[2], c[3], c[4], c[5]}, threads);
    return true;
}

bool read_moment(nb::handle codes, nb::handle scale, std::int64_t size, Array& array, float*& scales) {
    TensorView view, scale_view;
    const std::int64_t blocks = (size + kMomentBlock - 1) / kMomentBlock;
    if (!read_flat_of(codes, size, DType::uint8, view) ||
        !read_flat_of(scale, blocks, DType::fp32, scale_view)) {
        return false;
    }
    array = {view.data, view.dtype};
    scales = static_cast<float*>(scale_view.data);
    return true;
}

bool call_adamw_8bit(nb::handle master, nb::handle exp_avg, nb::handle exp_avg_sq, nb::handle exp_avg_scale,
                     nb::handle exp_avg_sq_scale, nb::handle grad, nb::handle shard, nb::handle coefficients,
                     nb::handle grad_scale, nb::handle skip_flag, bool maximize, nb::handle seed,
                     std::int64_t start, std::int64_t step, int threads) {
    const Common common{grad, shard, grad_scale, skip_flag, seed, maximize, start, step, kMomentBlock};
    Update update;
    TensorView weights;
    bool skip = false;
    float c[7];
    float *first_scales = nullptr, *second_scales = nullptr;
    if (!read_flat_of(master, -1, DType::fp32, weights)) return false;
    update.size = weights.sizes[0];
    update.states[0] = {weights.data, weights.dtype};
    update.state_count = 3;
    if (!read_moment(exp_avg, exp_avg_scale, update.size, update.states[1], first_scales) ||
        !read_moment(exp_avg_sq, exp_avg_sq_scale, update.size, update.states[2], second_scales) ||
        !read_common(common, update, skip) || !read_coefficients(coefficients, c) || seed.is_none()) {
        return false;
    }
    const Released released(update.size);
    if (skip) return true;
    adamw_8bit(update, first_scales, second_scales, {c[0], c[1], c[2], c[3], c[4], c[5], c[6]}, threads);
    return true;
}

}  // namespace

void bind_updates(nb::module_& module) {
    define(module, "adamw", &call_adamw);
    define(module, "sgd_momentum", &call_sgd_momentum);
    define(module, "lion", &call_lion);
    define(module, "adamw_8bit", &call_adamw_8bit);
}

}  // namespace overlap
