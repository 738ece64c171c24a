"""What became of each step: rows of ``metrics.jsonl`` under torchtitan's names, and the progress display."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from torch import Tensor

from overlap.demo.evaluate import across_ranks
from overlap.demo.progress import ProgressDisplay


@dataclass
class Journal:
    """Looks at the loss on the first step and then every ``every`` steps; each look waits for the device."""

    every: int
    tokens: int
    """Tokens per step on one rank."""
    display: ProgressDisplay
    rows: list[dict[str, float]] = field(default_factory=list)
    _seen_step: int = 0
    _seen_at: float = field(default_factory=time.perf_counter)

    def note(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Take note of a finished step, counted from 1. All ranks call it."""
        if step != 1 and step % self.every:
            return
        losses = across_ranks(loss)
        average = sum(losses) / len(losses)
        seconds = self._seconds_per_step(step)
        self.rows.append(
            {
                "step": step,
                "loss_metrics/global_avg_loss": average,
                "loss_metrics/global_max_loss": max(losses),
                "throughput(tps)": self.tokens / seconds,  # of one rank, as in torchtitan
                "time_metrics/end_to_end(s)": seconds,
                "grad_norm": grad_norm.item(),
                "lr": lr,
            }
        )
        self.display.show(step, average, len(losses) * self.tokens / seconds)

    def losses(self) -> list[float]:
        """The loss at each look, averaged over ranks."""
        return [row["loss_metrics/global_avg_loss"] for row in self.rows]

    def median_step_ms(self) -> float:
        """Median time of a step, without the first two if there are more: they record and agree the plan."""
        seconds = [row["time_metrics/end_to_end(s)"] for row in self.rows]
        return 1e3 * median(seconds[2:] or seconds)

    def write(self, path: Path) -> None:
        """Write one JSON object per look."""
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    def _seconds_per_step(self, step: int) -> float:
        now = time.perf_counter()
        seconds = (now - self._seen_at) / (step - self._seen_step)
        self._seen_step, self._seen_at = step, now
        return seconds
