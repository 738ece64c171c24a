"""A sweep of ``overlap bench bucket`` as data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

from overlap.bench.collective.names import DTYPES
from overlap.bench.collective.settings import CollectiveSettings
from overlap.comm.volume import Collective
from overlap.errors import ConfigError, message

BUCKETED = ("reduce_scatter", "all_reduce")


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Everything that decides a sweep."""

    collective: str = "reduce_scatter"
    """That buckets leave by: reduce_scatter or all_reduce."""
    transport: str = "overlap"
    """gloo, nccl or overlap."""
    device: str = "cpu"
    """Of ``overlap``: cpu or cuda."""
    ranks: int = 2
    """Processes."""
    min_bytes: int = 256 << 10
    """Smallest bucket."""
    max_bytes: int = 64 << 20
    """Largest bucket."""
    step_factor: int = 2
    """From size to size."""
    in_flight: tuple[int, ...] = (1, 2)
    """Buckets that there are: compute waits when all of them are full."""
    total_bytes: int = 64 << 20
    """Gradients of a step."""
    datatype: str = "float"
    """On the wire."""
    rounds: int = 5
    """Timed rounds, after one that is not."""
    ratio: float = 1.0
    """Compute of a step, over the time that its gradients take in the largest bucket."""
    matrix: int = 256
    """Side of the square matrices that compute multiplies."""
    share: float = 0.8
    """Of the bandwidth, that the recommended bucket reaches."""
    json: str | None = None
    """File for all figures."""

    def __post_init__(self) -> None:
        """Refuse what cannot be swept."""
        if self.collective not in BUCKETED:
            rule = f"be one of {', '.join(BUCKETED)}"
            raise ConfigError(message("collective", rule, self.collective, "gradients are reduced"))
        for name in ("total_bytes", "rounds", "matrix", *(("in_flight",) if not self.in_flight else ())):
            if not getattr(self, name):
                raise ConfigError(message(name, "be positive", getattr(self, name), "give a larger value"))
        if min(self.in_flight) < 1:
            raise ConfigError(message("in_flight", "be positive", min(self.in_flight), "give larger values"))
        if self.ranks < 2:
            raise ConfigError(message("ranks", "be two or more", self.ranks, "start more: one has nothing to send"))
        if not self.ratio > 0:
            raise ConfigError(message("ratio", "be positive", self.ratio, "give a larger value"))
        check_share(self.share)
        self.call  # noqa: B018  refuses the rest

    @property
    def call(self) -> CollectiveSettings:
        """The collective alone, as ``overlap bench collective`` has it."""
        return CollectiveSettings(
            collectives=(self.collective,),
            transports=(self.transport,),
            device=self.device,
            ranks=self.ranks,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            step_factor=self.step_factor,
            datatypes=(self.datatype,),
        )

    def sizes(self) -> list[int]:
        """Bytes of the buckets."""
        return [
            nbytes for _, nbytes in self.call.sizes(cast(Collective, self.collective), DTYPES[self.datatype].itemsize)
        ]

    def buckets(self, nbytes: int) -> int:
        """How many of a size make a step."""
        return max(1, round(self.total_bytes / nbytes))

    def to_json(self) -> str:
        """Return the settings as one line, fit for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        given: dict[str, Any] = json.loads(text)
        return cls(**{**given, "in_flight": tuple(given["in_flight"])})


def check_share(share: float) -> None:
    """Refuse a share that no bucket can have.

    Raises:
        ConfigError: it is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ConfigError(message("share", "be between 0 and 100 %", f"{100 * share:g} %", "ask for e.g. 80"))
