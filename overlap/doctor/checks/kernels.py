"""Who runs the fused ops, and who carries bytes between ranks of a host."""

from collections.abc import Iterator

from overlap.comm.same_host import MODES
from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, error, note, ok, warning

_REBUILD = "reinstall Overlap where a C++ compiler is found, without OVERLAP_NATIVE=off"


def check(facts: Facts) -> Iterator[Finding]:
    """The C++ extensions, Triton, the CUDA C++ kernels, and what was chosen among them."""
    yield _cpu(facts)
    yield _between_ranks(facts)
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


def _between_ranks(facts: Facts) -> Finding:
    """CPU tensors of ranks on one host."""
    subject, mode = "ranks of a host", facts.environment.get("OVERLAP_SHARED_MEMORY", "auto").lower()
    if mode not in MODES:
        rule = f"OVERLAP_SHARED_MEMORY must be one of {', '.join(MODES)}"
        return error(subject, mode, rule, "unset OVERLAP_SHARED_MEMORY")
    if mode != "off" and facts.software.shared:
        return ok(subject, "through shared memory")
    why = "sockets of the loopback copy every byte twice more, in the kernel"
    if mode == "off":
        return warning(subject, "through gloo: OVERLAP_SHARED_MEMORY=off", why, "unset OVERLAP_SHARED_MEMORY")
    if mode == "on":
        missing = "overlap._shared is not built: the first communicator raises this"
        return error(subject, "OVERLAP_SHARED_MEMORY=on", missing, _REBUILD)
    return warning(subject, "through gloo: overlap._shared is not built", why, _REBUILD)


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
