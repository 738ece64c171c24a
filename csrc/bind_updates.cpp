#include "arguments.h"
#include "bindings.h"

namespace overlap {
namespace {

// The arguments that every update rule ends with.
struct Common {
    Object grad, shard, grad_scale, skip, maximize, seed, start, step;
    std::int64_t start_multiple;
};

bool read_common(const Common& common, Update& update, bool& skip) {
    TensorView grad, shard;
    float factor = 1.0f;
    bool maximize = false;
    if (!read_flag(common.maximize, maximize) || !read_floats(common.grad, update.size, grad) ||
        !read_scale(common.grad_scale, factor) || !read_skip(common.skip, skip)) {
        return false;
    }
    if (!common.shard.is_none() && !read_floats(common.shard, update.size, shard)) return false;
    update.grad = {grad.data, grad.dtype};
    update.shard = {shard.data, shard.dtype};
    update.grad_factor = maximize ? -factor : factor;
    return read_rounding(common.seed, common.start, common.step, common.start_multiple, update.rounding);
}

bool fp32_or_bf16(const TensorView& view) { return view.dtype == DType::fp32 || view.dtype == DType::bf16; }

// Weights and moments; bf16 weights are rounded stochastically and are themselves what the next gather reads.
bool read_states(std::initializer_list<Object> states, const Common& common, Update& update) {
    update.state_count = 0;
    update.size = -1;
    for (const Object state : states) {
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

bool call_adamw(Object master, Object exp_avg, Object exp_avg_sq, Object grad, Object shard,
                Object coefficients, Object grad_scale, Object skip_flag, Object maximize, Object seed,
                Object start, Object step, Object thread_count) {
    const Common common{grad, shard, grad_scale, skip_flag, maximize, seed, start, step, kPerPhilox};
    Update update;
    bool skip = false;
    std::int64_t threads = 1;
    float c[7];
    if (!read_states({master, exp_avg, exp_avg_sq}, common, update) || !read_common(common, update, skip) ||
        !read_coefficients(coefficients, c) || !read_integer(thread_count, threads)) {
        return false;
    }
    const Released released(update.size);
    if (!skip) adamw(update, {c[0], c[1], c[2], c[3], c[4], c[5], c[6]}, static_cast<int>(threads));
    return true;
}

bool call_sgd_momentum(Object master, Object buffer, Object grad, Object shard, Object coefficients,
                       Object nesterov_flag, Object grad_scale, Object skip_flag, Object maximize,
                       Object seed, Object start, Object step, Object thread_count) {
    const Common common{grad, shard, grad_scale, skip_flag, maximize, seed, start, step, kPerPhilox};
    Update update;
    bool skip = false, nesterov = false;
    std::int64_t threads = 1;
    float c[5];
    if (!read_states({master, buffer}, common, update) || !read_common(common, update, skip) ||
        !read_coefficients(coefficients, c) || !read_integer(thread_count, threads) ||
        !read_flag(nesterov_flag, nesterov)) {
        return false;
    }
    const Released released(update.size);
    if (!skip) sgd_momentum(update, {c[0], c[1], c[2], c[3], c[4]}, nesterov, static_cast<int>(threads));
    return true;
}

bool call_lion(Object master, Object exp_avg, Object grad, Object shard, Object coefficients,
               Object grad_scale, Object skip_flag, Object maximize, Object seed, Object start, Object step,
               Object thread_count) {
    const Common common{grad, shard, grad_scale, skip_flag, maximize, seed, start, step, kPerPhilox};
    Update update;
    bool skip = false;
    std::int64_t threads = 1;
    float c[6];
    if (!read_states({master, exp_avg}, common, update) || !read_common(common, update, skip) ||
        !read_coefficients(coefficients, c) || !read_integer(thread_count, threads)) {
        return false;
    }
    const Released released(update.size);
    if (!skip) lion(update, {c[0], c[1], c[2], c[3], c[4], c[5]}, static_cast<int>(threads));
    return true;
}

bool read_moment(Object codes, Object scale, std::int64_t size, Array& array, float*& scales) {
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

bool call_adamw_8bit(Object master, Object exp_avg, Object exp_avg_sq, Object exp_avg_scale,
                     Object exp_avg_sq_scale, Object grad, Object shard, Object coefficients,
                     Object grad_scale, Object skip_flag, Object maximize, Object seed, Object start,
                     Object step, Object thread_count) {
    const Common common{grad, shard, grad_scale, skip_flag, maximize, seed, start, step, kMomentBlock};
    Update update;
    TensorView weights;
    bool skip = false;
    std::int64_t threads = 1;
    float c[7];
    float *first_scales = nullptr, *second_scales = nullptr;
    if (!read_flat_of(master, -1, DType::fp32, weights)) return false;
    update.size = weights.sizes[0];
    update.states[0] = {weights.data, weights.dtype};
    update.state_count = 3;
    if (!read_moment(exp_avg, exp_avg_scale, update.size, update.states[1], first_scales) ||
        !read_moment(exp_avg_sq, exp_avg_sq_scale, update.size, update.states[2], second_scales) ||
        !read_common(common, update, skip) || !read_coefficients(coefficients, c) ||
        !read_integer(thread_count, threads) || seed.is_none()) {
        return false;
    }
    const Released released(update.size);
    if (skip) return true;
    adamw_8bit(update, first_scales, second_scales, {c[0], c[1], c[2], c[3], c[4], c[5], c[6]},
               static_cast<int>(threads));
    return true;
}

}  // namespace

void bind_updates(nb::module_& module) {
    define<&call_adamw>(module, "adamw");
    define<&call_sgd_momentum>(module, "sgd_momentum");
    define<&call_lion>(module, "lion");
    define<&call_adamw_8bit>(module, "adamw_8bit");
}

}  // namespace overlap
