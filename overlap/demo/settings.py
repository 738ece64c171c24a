"""One training run as data. What can be refused is refused here, before any process is started."""

import json
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

import torch

from overlap.config import options_from
from overlap.demo.model import PRESETS, GPTConfig
from overlap.errors import ConfigError, message

DTYPES = {"fp32": None, "bf16": torch.bfloat16}
OPTIMIZERS = ("overlap", "torch")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Everything that decides a run of the demo."""

    stage: int = 3
    """What is sharded: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters."""
    ranks: int = 2
    steps: int = 100
    size: str = "small"
    """Name of a model preset."""
    data: str | None = None
    """File or folder to read; the standard library's source when None."""
    batch: int = 12
    """Sequences per step over all ranks."""
    lr: float = 1e-3
    """Peak of the learning rate: a short warm-up, then a cosine down to a tenth."""
    dtype: str = "fp32"
    """Compute dtype."""
    optimizer: str = "overlap"
    """``overlap`` for the fused AdamW, ``torch`` for ``torch.optim.AdamW``."""
    prefetch: int = 2
    """How many units ahead a gather is issued."""
    bucket_mb: float | None = None
    """Size of a gradient bucket; the engine's choice when None."""
    lanes: str = "auto"
    """``auto`` to overlap, ``inline`` to run communication in line with compute."""
    seed: int = 0
    log_every: int = 1
    """Steps between two looks at the loss; each one waits for the device."""
    out: str = "runs/latest"

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        _choose("size", self.size, tuple(PRESETS))
        _choose("dtype", self.dtype, tuple(DTYPES))
        _choose("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("ranks", "steps", "batch", "log_every", "lr"):
            _positive(name, getattr(self, name))
        if self.batch % self.ranks:
            rule = f"be a multiple of the {self.ranks} ranks"
            raise ConfigError(message("batch", rule, self.batch, "choose another batch"))
        options_from(self.shard_options())

    @property
    def model(self) -> GPTConfig:
        """Shape of the model."""
        return PRESETS[self.size]

    @property
    def data_path(self) -> Path | None:
        """Where the text is, or None for the standard library."""
        return None if self.data is None else Path(self.data)

    def shard_options(self) -> dict[str, Any]:
        """The engine's options."""
        options: dict[str, Any] = {
            "stage": self.stage,
            "param_dtype": DTYPES[self.dtype],
            "prefetch": self.prefetch,
            "lanes": self.lanes,
            "timeline": True,
        }
        if self.bucket_mb is not None:
            options["bucket_bytes"] = int(self.bucket_mb * 2**20)
        return options

    def to_json(self) -> str:
        """Return the settings as one line, fit for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        return cls(**json.loads(text))


def _choose(subject: str, value: object, allowed: tuple[object, ...]) -> None:
    if value in allowed:
        return
    names = [str(name) for name in allowed]
    near = get_close_matches(str(value), names, n=1)
    cure = f"did you mean {near[0]}?" if near else "choose one of these"
    raise ConfigError(message(subject, f"be one of {', '.join(names)}", value, cure))


def _positive(subject: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(message(subject, "be positive", value, "give a larger value"))
