#include "bindings.h"

#include "tensor_view.h"

NB_MODULE(_native, module) {
    module.doc() = "CPU kernels of overlap.ops; call them through overlap.ops.";
    overlap::load_tensor_api();
    overlap::bind_movement(module);
    overlap::bind_reduction(module);
    overlap::bind_updates(module);
    overlap::bind_compression(module);
}
