"""Who runs the fused ops."""

from collections.abc import Iterator

from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, error, note, ok, warning

_REBUILD = "reinstall Overlap where a C++ compiler is found, without OVERLAP_NATIVE=off"


def check(facts: Facts) -> Iterator[Finding]:
    """The C++ extension, Triton, the CUDA C++ kernels, and what was chosen among them."""
    yield _cpu(facts)
    if facts.gpus.seen:
        yield from _cuda(facts)
    if facts.environment.get("TRITON_INTERPRET", "0") not in ("", "0"):
        why = "Triton kernels run in Python, one element block at a time"
        yield error("TRITON_INTERPRET", facts.environment["TRITON_INTERPRET"], why, "unset it")


def _cpu(facts: Facts) -> Finding:
    face, built = facts.software.cpu_face, facts.software.native
    if face == "native":
        return ok("ops on CPU", "C++")
    if face != "reference":  # why there is none
        return error("ops on CPU", face, "the first op raises this", "set OVERLAP_NATIVE=auto")
    why = "plain torch gives the same bits, but passes over memory several times"
    if not built:
        return warning("ops on CPU", "plain torch: overlap._native is not built", why, _REBUILD)
    return warning("ops on CPU", "plain torch: OVERLAP_NATIVE=off", why, "unset OVERLAP_NATIVE")


def _cuda(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    if software.triton is None:
        why = "only pack, unpack, reduce_sum and grad_norm have CUDA C++ kernels: the rest runs in plain torch"
        yield warning("Triton", "not installed", why, "pip install 'overlap-engine[triton]'")
    else:
        yield ok("Triton", software.triton)
    if not software.fatbin:
        yield note("CUDA C++ kernels", "not built", "Triton's serve instead, with the same bits")
    face = software.cuda_face or "none"
    if face in ("cuda", "triton"):
        yield ok("ops on CUDA", {"cuda": "CUDA C++, else Triton", "triton": "Triton"}[face])
    elif face == "reference":
        why = "plain torch gives the same bits, in many small kernels"
        yield warning("ops on CUDA", "plain torch", why, "pip install 'overlap-engine[triton]'")
    else:
        yield error("ops on CUDA", face, "the first op raises this", "set OVERLAP_CUDA_KERNELS=auto")
