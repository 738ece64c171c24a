"""The executor at work over virtual streams and memory that knows when it is misused.

``Memory`` is the engine's side: gathers fill slots, packs fill buffers, reductions read them, each taking a while.
``Driver`` is the training program: it passes positions, and reads the slot of every unit from its entry to its exit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schedule.models import is_entry, is_exit
from schedule.virtual_gpu import MisuseError, VirtualGpu

from overlap.schedule.executor import Executor
from overlap.schedule.lanes import Job
from overlap.schedule.lanes_cuda import CudaClock, CudaComputeLane, CudaLane
from overlap.schedule.op import ENTRY_OF_EXIT, Kind, LaneName, Op, Position
from overlap.schedule.plan import Plan
from overlap.schedule.spec import NO_SLOT, StepSpec

MOVING, POISON = "moving", "poison"


class Memory:
    """Slots and bucket buffers; also the record of what was done to them."""

    def __init__(self, gpu: VirtualGpu, spec: StepSpec) -> None:
        self.gpu, self.spec = gpu, spec
        self.slots: dict[int, int | str] = {}
        self.readers: dict[int, list[int]] = {}
        self.buffers: dict[int, int | str] = {}
        self.submitted: list[Op] = []
        self.done: list[str] = []
        self.reduced: list[int] = []
        self.unused: set[int] = set()  # buckets that get no gradient in any backward

    # -- what the executor asks for --------------------------------------------------------------------------

    def job(self, op: Op) -> Job:
        def run() -> None:
            self.submitted.append(op)
            for work in self._work(op):
                self.gpu.launch(work)
            self.gpu.launch(lambda: self.done.append(op.records))

        return Job(op.records, str(op.kind), "", op.bytes, run)

    def expects_more(self, bucket: int, *, passed: bool) -> bool:
        return bucket not in self.unused

    def waited_for(self, event: str) -> str:
        return event

    def _work(self, op: Op) -> Sequence[Callable[[], None]]:
        if op.kind is Kind.GATHER:
            return [lambda: self._fill(op.index, MOVING), lambda: self._fill(op.index, op.index)]
        if op.kind is Kind.PACK:
            return [lambda: self._pack(op.index)]
        if op.kind is Kind.REDUCE:
            end = self._within_copy if self.spec.buckets[op.index].replicate_bytes else self._reduced
            return [lambda: self._reduce(op.index), lambda: end(op.index)]
        if op.kind is Kind.REPLICATE:
            return [lambda: self._cross(op.index), lambda: self._reduced(op.index)]
        return [lambda: self._fill(op.index, POISON)] if op.frees else []

    def _fill(self, unit: int, content: int | str) -> None:
        slot = self.spec.units[unit].slot
        if self.readers.get(slot):
            raise MisuseError(f"slot {slot} is filled with unit {unit} ({content}) while {self.readers[slot]} read it")
        self.slots[slot] = content

    def _pack(self, bucket: int) -> None:
        buffer = self.spec.buckets[bucket].buffer
        if self.buffers.get(buffer) == MOVING:
            raise MisuseError(f"bucket {bucket} is packed while its buffer is reduced")
        self.buffers[buffer] = bucket

    def _reduce(self, bucket: int) -> None:
        buffer = self.spec.buckets[bucket].buffer
        if self.buffers.get(buffer) != bucket:
            raise MisuseError(f"bucket {bucket} is reduced, but its buffer holds {self.buffers.get(buffer)}")
        self.buffers[buffer] = MOVING

    def _within_copy(self, bucket: int) -> None:
        self.buffers[self.spec.buckets[bucket].buffer] = f"within copy {bucket}"

    def _cross(self, bucket: int) -> None:
        buffer = self.spec.buckets[bucket].buffer
        if self.buffers.get(buffer) != f"within copy {bucket}":
            raise MisuseError(f"bucket {bucket} is replicated, but its buffer holds {self.buffers.get(buffer)}")
        self.buffers[buffer] = MOVING

    def _reduced(self, bucket: int) -> None:
        self.buffers[self.spec.buckets[bucket].buffer] = f"reduced {bucket}"
        self.reduced.append(bucket)

    # -- what the training program does on the compute stream ------------------------------------------------

    def start_read(self, unit: int) -> None:
        self._check(unit)
        self.readers.setdefault(self.spec.units[unit].slot, []).append(unit)

    def end_read(self, unit: int) -> None:
        self._check(unit)
        self.readers[self.spec.units[unit].slot].remove(unit)

    def _check(self, unit: int) -> None:
        content = self.slots.get(self.spec.units[unit].slot)
        if content != unit:
            raise MisuseError(f"unit {unit} reads its slot, which holds {content}")

    def check_gradients(self, number: int) -> None:
        """As many reductions have ended as were issued: what the optimizer relies on after a pass."""
        if len(self.reduced) != number or MOVING in self.buffers.values():
            raise MisuseError(f"{number} reductions were issued, {len(self.reduced)} have ended")


class Driver:
    """Runs passes; hold on to ``executor``, ``memory`` and ``gpu`` to look at them."""

    def __init__(self, spec: StepSpec) -> None:
        self.gpu = VirtualGpu()
        self.memory = Memory(self.gpu, spec)
        clock = CudaClock(self.gpu)
        names = (LaneName.GATHER, LaneName.REDUCE, LaneName.REPLICATE)
        lanes = {name: CudaLane(name, cuda=self.gpu, clock=clock) for name in names}
        compute = CudaComputeLane(cuda=self.gpu, clock=clock)
        self.executor = Executor(spec, self.memory, compute, lanes)
        self.spec = spec

    def run(
        self,
        positions: Sequence[Position],
        plan: Plan | None = None,
        *,
        stale: bool = True,
        reduce: bool = True,
        finish: bool = True,
        repeat: int | None = None,
    ) -> list[Op]:
        """One pass; what it submitted.

        With ``finish`` False user code raised behind the last position. ``repeat`` is a bucket that gradients have
        reached after it was packed.
        """
        before = len(self.memory.submitted)
        self.executor.begin(plan, range(len(self.spec.buckets)), stale=stale)
        first = next((n for n, position in enumerate(positions) if position.kind is Kind.BACKWARD), len(positions))
        self._go(positions[:first])
        if first < len(positions):
            self.backward(positions[first:], reduce=reduce, finish=finish, repeat=repeat)
        return self.memory.submitted[before:]

    def backward(
        self, positions: Sequence[Position], *, reduce: bool = True, finish: bool = True, repeat: int | None = None
    ) -> None:
        """One backward of the pass that is running."""
        self.executor.open_backward(reduce=reduce)
        self._go(positions)
        if finish:
            self._finish(repeat)

    def relocate(self, spec: StepSpec) -> None:
        """Units have got other slots."""
        self.spec = self.memory.spec = spec
        self.executor.relocate(spec)

    def _go(self, positions: Sequence[Position]) -> None:
        reading: list[Position] = []
        for position in positions:
            self._pass(position, reading)
        for position in reading:  # left by an exception
            self._read(self.memory.end_read, position.unit)

    def _finish(self, repeat: int | None) -> None:
        """Autograd is through."""
        self.executor.flush()
        if repeat is not None:
            self.executor.repeat(repeat)
        self.executor.finish()
        issued = sum(op.kind is Kind.REDUCE for op in self.memory.submitted)
        self.gpu.launch(lambda: self.memory.check_gradients(issued))

    def _pass(self, position: Position, reading: list[Position]) -> None:
        if position.kind is Kind.PACK:
            self.executor.ready(position.unit)
            return
        if is_exit(position):
            reading.remove(Position(ENTRY_OF_EXIT[position.kind], position.unit))
            self._read(self.memory.end_read, position.unit)
        self.executor.reach(position)
        if is_entry(position):
            reading.append(position)
            self._read(self.memory.start_read, position.unit)

    def _read(self, how: Callable[[int], None], unit: int) -> None:
        if self.spec.units[unit].slot != NO_SLOT:
            self.gpu.launch(lambda: how(unit))
