"""What the parent tells the ranks, and where they leave what they found."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from overlap.bench.step.settings import StepSettings


@dataclass(frozen=True, kw_only=True)
class Task:
    """One start of all ranks."""

    settings: StepSettings
    interface: str
    """Over which they talk."""
    own_hosts: bool
    """Whether nobody else's bytes cross that interface."""
    communicator_rate: float | None
    """Bytes per second that this engine's communicator keeps to, where the kernel does not limit the links."""
    batch: int | None
    """Sequences per rank; None to find the balance."""
    memory_of: str | None = None
    """Run this contender alone and tell its peak memory, instead of letting all take turns."""
    out: str = ""
    """File that rank 0 writes."""

    def to_json(self) -> str:
        """Return the task as one line, fit for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        given: dict[str, Any] = json.loads(text)
        settings = StepSettings.from_json(json.dumps(given.pop("settings")))
        return cls(settings=settings, **given)

    def write(self, found: dict[str, Any]) -> None:
        """Leave what the ranks found for the parent."""
        Path(self.out).write_text(json.dumps(found), encoding="utf-8")
