"""One rank skips, doubles or reorders one call, of every kind that the engine makes: all ranks raise, in time.

Jobs spend their time in waiting, so several run at once.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from support.clear_error import GRAMMAR
from support.out_of_step import Seen, train_with_each
from support.ranks import Ranks

from overlap.comm.shaped import Fault

TIMEOUT_S = 3.0
MARGIN_S = 8.0  # on a machine that is busy with other tests; a lane that hangs would take longer
AT_ONCE = 6
ACTIONS = ("skip", "double", "reorder")
VICTIM = 1


@dataclass(frozen=True)
class Call:
    """One call of a training run.

    Attributes:
        number: among the calls that a `Fault` counts together.
        text: how errors begin to name it.
    """

    number: int
    text: str


CALLS = {
    # A step has five gathers, nine reductions and a replicated one. The fault is in the second step, the first planned.
    "gather": Call(7, "all_gather (gather) of 'blocks.1' (gathered:2), "),
    "reduce": Call(13, "reduce_scatter (reduce) of 'blocks.1' (reduced:2), "),
    "replicated": Call(1, "all_reduce (replicated) of 'replicated' (reduced:9), "),
    "replicate": Call(13, "all_reduce (replicate) of 'blocks.1' (replicated:2), "),
    "norm": Call(1, "all_gather (norm), "),
    "all_max": Call(1, "all_gather (control) of all_max, "),  # which parameters were used, at the end of backward
    "plan": Call(0, "all_gather (control) of agree('plan'), "),
    "gather_object": Call(0, "all_gather (control) of gather_object, "),  # which parameters there are
    "init": Call(0, "broadcast (init) of '"),  # the first two are of one size
}

WHO = r"ranks? [\d, ]+ in "
# Calls for a unit, a bucket or a tensor name it. A norm is of the whole model.
WHAT = (
    r"\w+ \((gather|reduce|replicated|replicate)\) of '[\w.()]+' \(\w+:\d+\)",
    r"\w+ \(control\) of [\w()' ]+",
    r"\w+ \(init\) of '[\w.]+'",
    r"\w+ \(norm\)",
)
WHICH = r", \d+ bytes, call \d+ on lane '\w+', "


@dataclass(frozen=True)
class Job:
    """Processes that run one kind of call into its faults, one after another."""

    kind: str
    world: int
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return "-".join(map(str, (self.kind, self.world, *(value for _, value in self.options))))


JOBS = [
    *(Job(kind, world) for kind in CALLS for world in (2, 3) if kind != "replicate"),
    Job("gather", 2, (("lanes", "inline"),)),
    Job("reduce", 2, (("stage", 1),)),
    Job("replicated", 4, (("clip", False),)),
    Job("replicate", 4, (("copies", 2),)),
]


@pytest.fixture(scope="module")
def outcome(ranks: Ranks, request: pytest.FixtureRequest) -> Iterator[Callable[[Job], list[list[Seen]]]]:
    """By rank, what it saw of each fault. All jobs that were asked for run from the first one on."""
    chosen = [item.callspec.params["job"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = {job: threads.submit(_run, ranks, job) for job in dict.fromkeys(chosen)}
        yield lambda job: running[job].result()


def _run(ranks: Ranks, job: Job) -> list[list[Seen]]:
    faults = [Fault(job.kind, CALLS[job.kind].number, action) for action in ACTIONS]
    return ranks.fresh(job.world, train_with_each, faults, VICTIM, group_timeout_s=TIMEOUT_S, **dict(job.options))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_every_rank_raises_in_time_and_names_the_call(
    outcome: Callable[[Job], list[list[Seen]]], job: Job, action: str
) -> None:
    seen = [mine[ACTIONS.index(action)] for mine in outcome(job)]
    for rank, mine in enumerate(seen):
        assert re.fullmatch(GRAMMAR, mine.text), f"rank {rank}: {mine}"
        assert re.match(f"{WHO}({'|'.join(WHAT)}){WHICH}as rank {rank} sees it, must answer within", mine.text), mine
        assert mine.seconds < TIMEOUT_S + MARGIN_S
        assert mine.close_s < MARGIN_S
        assert not mine.threads
    assert any(CALLS[job.kind].text in mine.text for mine in seen), seen


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_no_step_ends_with_wrong_numbers(outcome: Callable[[Job], list[list[Seen]]], job: Job, action: str) -> None:
    """But for a rank that leaves out the last collective of a step: it meets nobody before the next one, and raises."""
    last_of_its_step = job.kind == "norm" or ("clip", False) in job.options
    for rank, mine in enumerate(outcome(job)):
        could_not_know = rank == VICTIM and last_of_its_step and action != "double"
        assert mine[ACTIONS.index(action)].wrong <= could_not_know
