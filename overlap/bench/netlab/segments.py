"""Let TCP hand a virtual cable pieces of up to 256 kB: what a card does in hardware costs the same cores here.

    sender's kernel ──256 kB──▶ token bucket ──▶ bridge ──▶ receiver's kernel

A card cuts what it sends into packets by itself and wakes its host once for many of them. A veth cable has no card:
every piece passes the token bucket's timer, the bridge and two wake-ups on the cores that compute. The kernel's 64 kB
are made for cards; with 256 kB (Linux 6.3 and newer) the cable takes a third of the pieces, and the same bytes.

Runs by its path inside a namespace, without this package or torch: ``python segments.py BYTES INTERFACE...``.
Messages: rtnetlink(7), ``struct ifinfomsg``; attributes as in linux/if_link.h.
"""

import socket
import struct
import sys

BYTES = 256 << 10
"""Well below the bucket (1 MB): a bucket lets no piece pass that is larger than itself."""

GSO_IPV4_MAX_SIZE, GRO_IPV4_MAX_SIZE = 63, 64
NEWLINK, GETLINK, REQUEST, ACKNOWLEDGE, ERROR = 16, 18, 1, 4, 2
HEADER, LINK, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HHI")


def enlarge(interface: str, size: int) -> int:
    """Ask for pieces of ``size`` bytes on an interface of this namespace; return the bytes that it now takes.

    An older kernel knows no such limit and keeps its own, which is what is returned.

    Raises:
        OSError: there is no such interface, or the kernel refuses (without CAP_NET_ADMIN).
    """
    link = LINK.pack(socket.AF_UNSPEC, 0, socket.if_nametoindex(interface), 0, 0)
    limits = (ATTRIBUTE.pack(ATTRIBUTE.size, kind, size) for kind in (GSO_IPV4_MAX_SIZE, GRO_IPV4_MAX_SIZE))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        _ask(kernel, NEWLINK, REQUEST | ACKNOWLEDGE, link + b"".join(limits))
        return _limit(_ask(kernel, GETLINK, REQUEST, link))


def _ask(kernel: socket.socket, kind: int, flags: int, body: bytes) -> bytes:
    kernel.send(HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body)
    answer = kernel.recv(1 << 16)
    if HEADER.unpack_from(answer)[1] == ERROR:
        (code,) = struct.unpack_from("=i", answer, HEADER.size)
        if code:
            raise OSError(-code, f"rtnetlink refuses message {kind}")
    return answer


def _limit(answer: bytes) -> int:
    place = HEADER.size + LINK.size
    while place < len(answer):
        length, kind, limit = ATTRIBUTE.unpack_from(answer, place)
        if kind == GSO_IPV4_MAX_SIZE:
            return int(limit)
        place += (length + 3) & ~3
    return 1 << 16


if __name__ == "__main__":
    print(min(enlarge(interface, int(sys.argv[1])) for interface in sys.argv[2:]))
