"""Bytes that crossed an interface of this host, as the kernel counts them: frames, headers and all."""

from dataclasses import dataclass
from pathlib import Path

from overlap.errors import ConfigError, message

DEVICES = Path("/proc/net/dev")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Since the interface came up; ``later - earlier`` is what lay between."""

    received: int
    sent: int

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(self.received - earlier.received, self.sent - earlier.sent)


def traffic(interface: str) -> Traffic:
    """Read the counters of an interface in this process's network namespace.

    Raises:
        ConfigError: there is no such interface.
    """
    for line in DEVICES.read_text(encoding="utf-8").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            fields = counts.split()
            return Traffic(received=int(fields[0]), sent=int(fields[8]))
    raise ConfigError(message("interface", "be in this network namespace", interface, "read one that is"))
