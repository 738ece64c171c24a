"""How files can be read and written beside compute."""

from collections.abc import Iterator

from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, note, ok


def check(facts: Facts) -> Iterator[Finding]:
    """Whether the kernel lets this process set up an io_uring."""
    if facts.io_uring is None:
        yield ok("io_uring", "available")
        return
    why = "reading and writing beside compute then takes threads: the same bandwidth for more CPU time"
    cure = "allow it in the container's seccomp profile, and set sysctl kernel.io_uring_disabled=0"
    yield note("io_uring", facts.io_uring, why, cure)
