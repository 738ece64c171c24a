"""Whether this process may set up an io_uring: asked of the kernel, since containers and sysctls forbid it."""

import ctypes
import errno
import os
import sys

_SETUP = 425  # the same number on every architecture that was added to Linux before 2019


def why_not() -> str | None:
    """None where the kernel would set up a ring, else its reason.

    A ring of zero entries is asked for. A kernel that would have made another one refuses this as invalid, so nothing
    is left to close.
    """
    if not sys.platform.startswith("linux"):
        return "not Linux"
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall(_SETUP, 0, ctypes.create_string_buffer(120))
    failure = ctypes.get_errno()
    return None if failure == errno.EINVAL else os.strerror(failure)
