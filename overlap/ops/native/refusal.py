"""What to raise where C++ refuses arguments that ``overlap.ops.check`` accepts."""

from overlap.errors import ConfigError, message


def unreadable(op: str) -> ConfigError:
    """Every rule holds, so C++ could not read a tensor: a subclass, say, whose memory is not its own."""
    cure = "pass plain tensors, or choose plain torch with overlap.ops.configure(native='off')"
    return ConfigError(message(op, "be given tensors that C++ can read", "a tensor subclass or layout", cure))
