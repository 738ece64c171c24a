"""What to record, and how the processes of a program are told."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from overlap.errors import ConfigError, message

VARIABLE = "OVERLAP_PROFILE"
"""Environment variable by which every Python process of the program learns what to record."""
TOOLS = ("auto", "nsys", "torch")


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Options of ``overlap profile``."""

    out: str
    """Folder for the recording; one trace per rank."""
    tool: str = "auto"
    """auto: nsys where it is installed and there is CUDA, else torch.profiler, which sees more of a CPU."""
    skip: int = 3
    """Optimizer steps before recording starts: compilation, warm-up, plans."""
    steps: int = 5
    """Optimizer steps to record."""

    def __post_init__(self) -> None:
        if self.tool not in TOOLS:
            raise ConfigError(message("tool", f"be one of {', '.join(TOOLS)}", self.tool, "choose one"))
        for name, least in (("skip", 1), ("steps", 1)):
            value = getattr(self, name)
            if value < least:
                cure = "the first step shows allocation and planning, not training"
                raise ConfigError(message(name, f"be at least {least}", value, cure))


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The part of the settings that the program's processes need."""

    tool: str
    """nsys or torch."""
    cuda: bool
    """Whether this machine has CUDA: by it nsys is told when to capture."""
    out: str
    skip: int
    steps: int
    home: str
    """Folder from which ``overlap`` can be imported."""

    @classmethod
    def of(cls, settings: ProfileSettings, tool: str, cuda: bool) -> "Orders":
        """The orders for a tool."""
        out, home = str(Path(settings.out).resolve()), str(Path(__file__).parents[2])
        return cls(tool=tool, cuda=cuda, out=out, skip=settings.skip, steps=settings.steps, home=home)

    def to_text(self) -> str:
        """As the environment variable has it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Orders":
        """Read what ``to_text`` wrote."""
        return cls(**json.loads(text))
