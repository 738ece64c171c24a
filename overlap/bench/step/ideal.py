"""What no step can beat: compute alone, or the fewest bytes its stage must send at the rate of the link."""

from overlap.bench.netlab.net import Net


def ideal_bytes(stage: int, params: int, world: int, *, gather_itemsize: int, reduce_itemsize: int) -> float:
    """Return the bytes that one rank must send in a step, small parameters and padding not looked at.

    Per rank, P parameters of c bytes in compute and r bytes as gradients, over N ranks (Rajbhandari et al. 2020, 7):

        stage 0       2 r P (N-1)/N         an all-reduce
        stage 1, 2    (c + r) P (N-1)/N     a reduce-scatter and a gather
        stage 3       (2 c + r) P (N-1)/N   a reduce-scatter and two gathers
    """
    gathers = (0, 1, 1, 2)[stage]
    reductions = 2 if stage == 0 else 1
    per_element = gathers * gather_itemsize + reductions * reduce_itemsize
    return per_element * params * (world - 1) / world


def wire_ms(nbytes: float, net: Net) -> float:
    """Return how long bytes take on a link; 0 where nothing limits it."""
    rate = net.payload_bytes_per_s
    return 0.0 if rate is None else 1e3 * nbytes / rate


def ideal_ms(floor_ms: float, nbytes: float, net: Net) -> float:
    """Return the longer of compute and wire."""
    return max(floor_ms, wire_ms(nbytes, net))
