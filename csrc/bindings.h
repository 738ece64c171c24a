// Each defines the Python functions of one family of ops in overlap._native. All arguments are positional, as
// the wrappers in overlap/ops/native/ pass them; each function returns whether its arguments fitted
// (arguments.h).
#pragma once

#include <nanobind/nanobind.h>

namespace overlap {

void bind_movement(nanobind::module_& module);
void bind_reduction(nanobind::module_& module);
void bind_updates(nanobind::module_& module);
void bind_compression(nanobind::module_& module);

}  // namespace overlap
