"""What is shown while it trains: a bar on a terminal, a line now and then elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 10


class ProgressDisplay:
    """Shows loss and speed; a context manager. Give it a quiet console to show nothing."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps = console, steps
        self._live = console.is_terminal and not console.quiet
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("", total=steps)
        self._next_line = 1

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Move to a step."""
        text = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, description=text)
        if not self._live and (step >= self._next_line or step == self._steps):
            self._console.print(f"step {step}/{self._steps}  {text}", highlight=False)
            self._next_line = step + max(1, self._steps // LINES)
