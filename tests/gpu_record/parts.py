"""The parts of a GPU record: each one command with a time limit, shown as it runs and kept as text."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]

BUILD_S, GPU_TESTS_S, OP_TESTS_S, BENCH_S = 100, 75, 115, 180
"""Limits, under eight minutes together."""

STOP_S = 40
"""The bench begins no case so long before its limit: it ends by itself, with all it has measured."""

OPS = ("adamw", "pack", "reduce_sum", "grad_norm", "unpack")
OPS += ("adamw_8bit", "sgd_momentum", "lion", "quantize", "dequantize")
"""What matters most first: the limit may come before the end."""

COMPILED = "(triton or cuda) and not aot and not interpret"
"""Op tests whose kernels run compiled where there is a GPU, marked or not."""

BENCH_ARGUMENTS = ("bench", "op", "--device", "cuda", "--sizes", "128M", "--budget", "4", "--overhead")
"""128M elements: 256 MB and more for every input in bf16 or fp32."""


@dataclass(frozen=True)
class Part:
    """What is run."""

    name: str
    command: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class Outcome:
    """How it went."""

    part: Part
    code: int
    """Exit status; negative for a signal."""
    seconds: float
    timed_out: bool
    text: str
    """Output and errors together."""

    @property
    def passed(self) -> bool:
        """Whether it ended by itself, with success."""
        return self.code == 0 and not self.timed_out

    @property
    def words(self) -> str:
        """The outcome in a few words."""
        end = f"stopped at its limit of {self.part.limit_s:.0f} s" if self.timed_out else f"exit status {self.code}"
        return f"{self.part.name}: {'passed' if self.passed else end} after {self.seconds:.0f} s"


def build(site: Path) -> Part:
    """Install the package with all it compiles into a folder; nothing is fetched, nothing else is touched."""
    offline = ("--no-index", "--no-build-isolation", "--no-deps")
    places = ("--config-settings", f"build-dir={site.parent / 'cmake'}", "--upgrade", "--target", str(site))
    return Part("build", (sys.executable, "-m", "pip", "install", "--quiet", *offline, *places, "."), BUILD_S)


def tests() -> list[Part]:
    """All that needs a GPU, then the op tests that compile their kernels where there is one."""
    # Without pytest-timeout the option that the project sets for it is unknown, and warnings are errors.
    plain = () if find_spec("pytest_timeout") else ("-W", "ignore::pytest.PytestConfigWarning")
    pytest = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plain)
    return [
        Part("tests marked gpu", (*pytest, "-m", "gpu"), GPU_TESTS_S),
        Part("op tests on the GPU", (*pytest, "tests/ops", "-m", "not gpu", "-k", COMPILED), OP_TESTS_S),
    ]


def bench(result: Path) -> Part:
    """Bandwidth and peers of every op."""
    time_limit = ("--time-limit", str(BENCH_S - STOP_S))
    ops = [word for op in OPS for word in ("--op", op)]
    command = (sys.executable, "-m", "overlap", *BENCH_ARGUMENTS, *ops, *time_limit, "--json", str(result))
    return Part("bench", command, BENCH_S)


def run(part: Part, variables: Mapping[str, str]) -> Outcome:
    """Run a part and what it starts, and end all of it at the limit.

    Args:
        part: what to run, from the root of the repository.
        variables: added to the environment.
    """
    print(f"== {part.name}: {' '.join(part.command)}", flush=True)
    begin = time.monotonic()
    late = threading.Event()
    with subprocess.Popen(
        part.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True, cwd=ROOT, env={**os.environ, **variables},
    ) as process:  # fmt: skip
        timer = threading.Timer(part.limit_s, _stop, (process, late))
        timer.start()
        text = _copied(process)
        code = process.wait()
        timer.cancel()
    outcome = Outcome(part, code, time.monotonic() - begin, late.is_set(), text)
    print(f"== {outcome.words}", flush=True)
    return outcome


def _copied(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return "".join(lines)


def _stop(process: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()
    with suppress(ProcessLookupError):  # it has ended just now
        os.killpg(process.pid, signal.SIGKILL)
