"""Which interfaces gloo and NCCL take."""

import re
from collections.abc import Iterator

from overlap.doctor.facts import Facts, Network
from overlap.doctor.finding import Finding, error, note, ok, warning

_LOOPBACK = "127."


def check(facts: Facts) -> Iterator[Finding]:
    """Interfaces, what was chosen among them, RDMA devices."""
    network, environment = facts.network, facts.environment
    addressed = {name: address for name, address in network.interfaces.items() if address}
    yield ok("interfaces", ", ".join(f"{name} {address}" for name, address in addressed.items()) or "none")
    chosen = environment.get("GLOO_SOCKET_IFNAME")
    yield _gloo_by_name(chosen, network) if chosen else _gloo_by_host(network)
    if pattern := environment.get("NCCL_SOCKET_IFNAME"):
        yield _nccl(pattern, network)
    if network.infiniband:
        yield _infiniband(network, environment.get("NCCL_IB_DISABLE", "0"))


def matching(pattern: str, names: list[str]) -> list[str]:
    """Interfaces that NCCL takes: prefixes, with commas; after ``=`` whole names, after ``^`` all others."""
    sign = re.match(r"[\^=]*", pattern)
    signs = sign[0] if sign else ""
    words = pattern[len(signs) :].split(",")
    hit = {name for name in names for word in words if (name == word if "=" in signs else name.startswith(word))}
    return [name for name in names if (name in hit) is ("^" not in signs)]


def _gloo_by_name(chosen: str, network: Network) -> Finding:
    for name in chosen.split(","):
        if name not in network.interfaces:
            value = f"{chosen}: no {name} here"
            return error(
                "GLOO_SOCKET_IFNAME", value, "gloo cannot bind", "name one of " + ", ".join(network.interfaces)
            )
        if name in network.down:
            return error(
                "GLOO_SOCKET_IFNAME", f"{chosen}: {name} is down", "nobody is reached over it", f"ip link set {name} up"
            )
    return ok("gloo", f"over {chosen} (GLOO_SOCKET_IFNAME)")


def _gloo_by_host(network: Network) -> Finding:
    address = network.hostname_address
    if address is None:
        why = "gloo listens on the address of the host's name; it then tries loopback, which other hosts cannot reach"
        return warning(
            "gloo", f"{network.hostname} has no address", why, "set GLOO_SOCKET_IFNAME, or add it to /etc/hosts"
        )
    if address.startswith(_LOOPBACK):
        why = "gloo listens on the address of the host's name: fine for ranks of this host, deaf to others"
        return note(
            "gloo", f"{network.hostname} is {address}", why, "set GLOO_SOCKET_IFNAME for jobs over several hosts"
        )
    return ok("gloo", f"on {address}, the address of {network.hostname}")


def _nccl(pattern: str, network: Network) -> Finding:
    names = matching(pattern, list(network.interfaces))
    if not names:
        why = "NCCL finds no interface to bootstrap over"
        return error("NCCL_SOCKET_IFNAME", pattern, why, "name one of " + ", ".join(network.interfaces))
    return ok("NCCL bootstrap", f"over {', '.join(names)} (NCCL_SOCKET_IFNAME)")


def _infiniband(network: Network, disabled: str) -> Finding:
    devices = ", ".join(network.infiniband)
    if disabled == "1":
        why = "hosts talk over TCP although there are RDMA devices"
        return warning("NCCL_IB_DISABLE", disabled, f"{why}: {devices}", "unset NCCL_IB_DISABLE")
    return ok("RDMA devices", devices)
