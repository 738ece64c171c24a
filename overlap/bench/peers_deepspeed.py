"""DeepSpeed's CPUAdam as a peer, where it is installed: never a dependency. docs/bench.md says how to install it."""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

OPTIMIZED = "-O3"


@lru_cache(maxsize=1)
def cpu_adam() -> tuple[Any, str | None]:
    """Return the optimizer class, its extension compiled with ``-O3``; or None and why it is not there.

    DeepSpeed compiles at the first use (half a minute, kept in torch's extension cache). Some versions pass no ``-O``
    flag for CPU; measuring those would be no comparison.
    """
    if find_spec("deepspeed") is None:
        return None, "not installed"
    try:
        builder = import_module("deepspeed.ops.op_builder").CPUAdamBuilder
        _optimized(builder)().load(verbose=False)  # DeepSpeed keeps what is loaded, by name
        return import_module("deepspeed.ops.adam").DeepSpeedCPUAdam, None
    except Exception as error:  # a compiler that is missing or fails, whatever DeepSpeed makes of it
        return None, f"installed, but does not load: {error}"


def _optimized(builder: Any) -> Any:
    class Optimized(builder):  # type: ignore[misc]
        def cxx_args(self) -> list[str]:
            args: list[str] = super().cxx_args()
            return args if OPTIMIZED in args else [OPTIMIZED, *args]

    return Optimized
