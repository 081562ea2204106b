"""Independent check of a finished run: nothing is read before it is there, or written over too early."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf

import numpy as np

from tilewright.ir.graph import Value
from tilewright.ir.graph_regions import value_regions
from tilewright.ir.region import Region, volume
from tilewright.memory.instances import InstanceStep
from tilewright.memory.scopes import PlacedBuffer
from tilewright.planning import Violation
from tilewright.schedule.binding import Scope, extents, transfers
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.npu.trace import Trace, by_tile, ends_until, first_start, last_end
from tilewright.targets.simulated import UnitRun


def check_order(trace: Trace) -> list[Violation]:
    """Everything that starts too early.

    Steps are walked in the plan's order, tile by tile. A tile needs what its operators read of every operand,
    worked out from their regions, and no more than that. What takes no time is done as soon as it can be.
    """
    return _Walk(trace).run()


class _Walk:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.scopes = trace, trace.planned.scopes
        self.graph = self.scopes.graph
        self.lowered = trace.planned.simulation.steps
        self.residents = trace.planned.simulation.residents.scopes
        self.violations: list[Violation] = []
        self.computed: list[Sequence[float]] = []  # by step and tile: when it is in the cores
        self.stored: list[dict[Scope, Sequence[float]]] = []  # the same: when it is where it belongs
        self.held = trace.held()
        self.places = _Places(self.scopes.buffers)
        self.moved = self._moved()
        self.moved_at: dict[tuple[int, int], float] = {}  # by reader's node and buffer
        self.main_extents: dict[int, tuple[int, ...]] = {}  # by step: of the largest that it writes
        self.fetched: dict[str, list[UnitRun]] = {}  # what brought a weight to the shared buffer last

    def run(self) -> list[Violation]:
        for number, step in enumerate(self.scopes.steps):
            self._walk(number, step)
        return self.violations

    def _moved(self) -> set[tuple[int, int]]:
        """Which nodes take which buffers to other cores before they read them."""
        found = set()
        for edge, inserted in transfers(self.graph, self.trace.planned.bindings, self.scopes.scopes).items():
            buffer = self.scopes.buffer_of(edge.producer, edge.value)
            if buffer.scope is Scope.LOCAL and any(t.kind is Kind.REDISTRIBUTE for t in inserted):
                found.add((edge.consumer, buffer.id))
        return found

    def _walk(self, number: int, step: InstanceStep) -> None:
        written = [self.scopes.buffers[i] for i in step.writes]
        num_tiles = self.lowered[number].tiling.num_tiles
        work = by_tile(self.trace.work(number))
        ready = [0.0] * num_tiles
        for what, arrivals in self._operands(number, step, written, num_tiles):
            for tile, arrival in enumerate(arrivals):
                ready[tile] = max(ready[tile], arrival)
                self._expect(work.get(tile, ()), arrival, number, f"tile {tile} reads {what}")
        if step.operators:
            for tile, runs in work.items():
                for earlier, later in pairwise(runs):
                    self._expect([later], earlier.end_s, number, f"tile {tile} goes on on {later.unit}")
            inside = (b for b in written if b.scope is Scope.LOCAL)
            released = max((self.places.released(b, but=b.in_place_of) for b in inside), default=0.0)
            ends = [last_end(work[t]) if t in work else max(ready[t], released) for t in range(num_tiles)]
        else:
            self._check_passed_on(number, step)
            ends = list(ends_until(self.trace.work(number), num_tiles))
        if self.trace.machine.shared is not None:
            self._check_passing(number)
        self.computed.append(ends)
        self.stored.append({b.scope: self._store(number, b.scope, ends) for b in written if b.size_bytes})
        for read in step.reads:
            if read.buffer is not None:
                self._use(number, self.scopes.buffers[read.buffer])
        for buffer in written:
            self._write(number, buffer)

    def _operands(
        self, number: int, step: InstanceStep, written: Sequence[PlacedBuffer], num_tiles: int
    ) -> Iterable[tuple[str, Sequence[float]]]:
        """What a step reads, and for each tile when what it needs of that is in the cores."""
        if not step.operators:
            return
        parts = [self._needs(number, step, written, tile) for tile in range(num_tiles)]
        if any(self._axis(number, buffer) is None for buffer in written):
            parts[-1] = None  # results that tiles do not cut need what they need with the last one
        for place, read in enumerate(step.reads):
            regions = [read.region if part is None else part.get(read.value) for part in parts]
            yield read.value.name, self._arrivals(number, step, place, regions)
        for weight in self.lowered[number].weights:
            key, group = weight.key or "", self.trace.group_of(number)
            brought = number if group is None else self.held.get((group.number, key), number)
            if brought is None:
                continue
            if brought < number:
                there_s = last_end(self.trace.of(brought, "weights", name=key))
                yield f"weight {key}", [there_s] * num_tiles
                continue
            yield f"weight {key}", ends_until(self.trace.of(number, "weights", name=key), num_tiles)

    def _arrivals(
        self, number: int, step: InstanceStep, place: int, regions: Sequence[Region | None]
    ) -> Sequence[float]:
        """When a value's regions are in the cores, as far as a step's read in this place brings them."""
        read = step.reads[place]
        buffer = None if read.buffer is None else self.scopes.buffers[read.buffer]
        made = [self._made(buffer, region) for region in regions]
        whole = self._made(buffer, read.region)
        name = read.value.name
        if buffer is not None and buffer.scope is Scope.LOCAL:
            key = (step.node, buffer.id)
            if key not in self.moved:
                return made
            if key not in self.moved_at:
                moves = self.trace.of(number, "move", name=name)
                self._expect(moves, whole, number, f"{name} is moved")
                self.moved_at[key] = max(whole, last_end(moves))
            return [self.moved_at[key]] * len(made)
        scope = Scope.MAIN if buffer is None else buffer.scope
        loads = self.trace.of(number, "load", self.trace.engine_of(scope), name, place)
        for tile, runs in by_tile(loads).items():
            self._expect(runs, whole if tile < 0 else made[tile], number, f"tile {tile} of {name} is loaded")
        return ends_until(self.trace.of(number, "load", self.trace.core_engine, name, place), len(made))

    def _check_passed_on(self, number: int, step: InstanceStep) -> None:
        """What is put together or copied moves when it has been made; parts of one value by their bytes."""
        through_bytes: Counter[str] = Counter()  # what comes from main memory passes the inner engine, too
        for scope in (Scope.MAIN, Scope.SHARED, Scope.LOCAL):
            made: dict[str, list[tuple[float, int]]] = {}
            for read, load in zip(step.reads, self.lowered[number].loads, strict=True):
                buffer = None if read.buffer is None else self.scopes.buffers[read.buffer]
                if scope is (Scope.MAIN if buffer is None else buffer.scope):
                    there = (self._made(buffer, read.region), load.size_bytes)
                    made.setdefault(read.value.name, []).append(there)
            for name, parts in made.items():
                if scope is Scope.LOCAL:
                    runs = self.trace.of(number, "move", name=name)
                else:
                    runs = self.trace.of(number, "load", self.trace.engine_of(scope), name)
                gone_bytes = -through_bytes[name] if scope is Scope.SHARED else 0
                for run in runs:
                    gone_bytes += run.size_bytes
                    if gone_bytes > sum(s for end, s in parts if end <= run.start_s + self.trace.tolerance_s):
                        self._violate(number, f"{name} moves at {_us(run.start_s)}, before it is made")
                if scope is Scope.MAIN:
                    through_bytes[name] = gone_bytes

    def _check_passing(self, number: int) -> None:
        """What passes the shared buffer leaves it after it has come, byte by byte."""
        step = self.lowered[number]
        for key in dict.fromkeys(weight.key or "" for weight in step.weights):
            fetches = self.trace.of(number, "fetch", name=key)
            if fetches or not key:
                self.fetched[key] = fetches
            if key not in self.residents:
                weights = self.trace.of(number, "weights", name=key)
                held = sum(
                    p.outer_held_bytes
                    for w, p in zip(step.weights, step.tiling.weights, strict=True)
                    if w.key == key and fetches
                )
                self._check_flow(number, f"weight {key}", self.fetched.get(key, []), weights, held)
        for part, (load, passage) in enumerate(zip(step.loads, step.tiling.loads, strict=True)):
            if load.scope is Scope.MAIN:
                outer, inner = (
                    self.trace.of(number, "load", unit, load.value, part) for unit in (DMA, CORE_DMA)
                )
                self._check_flow(number, load.value, outer, inner, passage.outer_held_bytes)
        for name in (store.value for store in step.stores if store.scope is Scope.MAIN):
            inner, outer = (self.trace.of(number, "store", unit, name) for unit in (CORE_DMA, DMA))
            self._check_flow(number, name, inner, outer)

    def _check_flow(
        self, number: int, what: str, coming: Sequence[UnitRun], going: Sequence[UnitRun], held_bytes: int = 0
    ) -> None:
        early = leaves_early(coming, going, held_bytes, self.trace.tolerance_s)
        if early is not None:
            self._violate(number, f"{what} leaves the shared buffer at {_us(early.start_s)}, too early")

    def _made(self, buffer: PlacedBuffer | None, region: Region | None) -> float:
        """When a region of a buffer lies where the buffer has its place."""
        if buffer is None or region is None or not volume(region):
            return 0.0
        producer = buffer.first_step
        if producer >= len(self.computed):
            return inf
        ends = self.stored[producer].get(buffer.scope, self.computed[producer])
        axis = self._axis(producer, buffer)
        if axis is None:
            return max(ends)
        cuts = _cuts(buffer.region, axis, len(ends))
        first, behind = bisect_right(cuts, region[axis][0]) - 1, bisect_left(cuts, region[axis][1])
        return max(ends[max(0, first) : behind], default=0.0)

    def _axis(self, number: int, buffer: PlacedBuffer) -> int | None:
        """The axis of a buffer that its step makes tile by tile; None if it is there with the last one."""
        axis = self.lowered[number].tiling.axis
        if axis is None:
            return None
        if number not in self.main_extents:
            written = [self.scopes.buffers[i] for i in self.scopes.steps[number].writes]
            main = max(written, key=lambda b: volume(b.region))
            self.main_extents[number] = extents(main.region)
        return axis if self.main_extents[number] == extents(buffer.region) else None

    def _needs(
        self, number: int, step: InstanceStep, written: Iterable[PlacedBuffer], tile: int
    ) -> Mapping[Value, Region] | None:
        """What a tile touches of every value; None: it may touch all that the step reads."""
        num_tiles = self.lowered[number].tiling.num_tiles
        wanted: dict[Value, Region] = {}
        for buffer in written:
            axis = self._axis(number, buffer)
            if axis is not None and volume(buffer.region):
                first, behind = _cuts(buffer.region, axis, num_tiles)[tile : tile + 2]
                # Of one element several tiles make a part each, cut along other axes, too.
                cut = first, max(behind, first + 1)
                wanted[buffer.value] = (*buffer.region[:axis], cut, *buffer.region[axis + 1 :])
        is_cut = self.lowered[number].tiling.axis is not None
        return value_regions(step.operators, wanted, self.graph.maps) if is_cut else None

    def _store(self, number: int, scope: Scope, computed: Sequence[float]) -> Sequence[float]:
        """When each tile is in its level."""
        if scope is Scope.LOCAL:
            return computed
        for tile, runs in by_tile(self.trace.of(number, "store", self.trace.core_engine)).items():
            self._expect(runs, computed[tile], number, f"tile {tile} is stored")
        outer = self.trace.of(number, "store", self.trace.engine_of(scope))
        return [max(pair) for pair in zip(computed, ends_until(outer, len(computed)), strict=True)]

    def _use(self, number: int, buffer: PlacedBuffer) -> None:
        """Until when a step reads a buffer in its place."""
        if buffer.scope is Scope.LOCAL:
            end = max(*self.computed[number], last_end(self.trace.of(number, "move", name=buffer.value.name)))
        else:
            engine = self.trace.engine_of(buffer.scope)
            end = last_end(self.trace.of(number, "load", engine, buffer.value.name))
        self.places.use(buffer, end)

    def _write(self, number: int, buffer: PlacedBuffer) -> None:
        """A buffer is written after the last access to what lay in its place."""
        if buffer.scope is Scope.LOCAL:
            runs = self.trace.work(number)
        else:
            runs = self.trace.of(number, "store", self.trace.engine_of(buffer.scope), buffer.value.name)
        what = f"{buffer} is written over what lies in its place in {buffer.scope}"
        self._expect(runs, self.places.released(buffer, but=buffer.in_place_of), number, what)
        self.places.use(
            buffer, max(self.stored[number].get(buffer.scope, self.computed[number]), default=0.0)
        )

    def _expect(self, runs: Iterable[UnitRun], ready: float, number: int, what: str) -> None:
        start = first_start(runs)
        if start < ready - self.trace.tolerance_s:
            self._violate(number, f"{what} from {_us(start)} on, which it can from {_us(ready)} on")

    def _violate(self, number: int, what: str) -> None:
        self.violations.append(Violation("order", f"step {number} ({self.lowered[number].name}): {what}"))


class _Places:
    """Which buffers share bytes with which, level by level, and until when each is used."""

    def __init__(self, buffers: Sequence[PlacedBuffer]) -> None:
        self.scope = np.array([list(Scope).index(b.scope) for b in buffers])
        self.start = np.array([b.offset_bytes for b in buffers], np.int64)
        self.end = np.array([b.end_bytes for b in buffers], np.int64)
        self.first_step = np.array([b.first_step for b in buffers])
        self.last_use = np.zeros(len(buffers))

    def use(self, buffer: PlacedBuffer, end_s: float) -> None:
        """A buffer is read or written until then."""
        self.last_use[buffer.id] = max(self.last_use[buffer.id], end_s)

    def released(self, buffer: PlacedBuffer, but: int | None = None) -> float:
        """When all that lay before in the place of a buffer has been used for the last time; one apart."""
        before = (self.scope == self.scope[buffer.id]) & (self.first_step < buffer.first_step)
        meet = before & (self.start < buffer.end_bytes) & (self.end > buffer.offset_bytes)
        if but is not None:
            meet[but] = False
        return float(self.last_use[meet].max(initial=0.0))


def leaves_early(
    coming: Sequence[UnitRun], going: Sequence[UnitRun], held_bytes: int, tolerance_s: float
) -> UnitRun | None:
    """The first run that takes from a buffer what has not come.

    What has come may leave more than once: as much as is held, as often as all of it does, before the next is
    wanted. `going` are in the order of their starts; `held_bytes` of 0 are all.
    """
    come = sorted((run.end_s, run.size_bytes) for run in coming)
    total_bytes = sum(size_bytes for _, size_bytes in come)
    all_gone = sum(run.size_bytes for run in going)
    block_bytes = held_bytes if 0 < held_bytes < total_bytes else total_bytes
    if any(run.size_bytes > block_bytes for run in coming):
        block_bytes = 1  # of a run that stands for several blocks: which of them is there is not known
    there_bytes, gone_bytes, place = 0, 0, 0
    for run in going:
        while place < len(come) and come[place][0] <= run.start_s + tolerance_s:
            there_bytes += come[place][1]
            place += 1
        gone_bytes += run.size_bytes
        wanted_bytes = min(gone_bytes, total_bytes)
        if block_bytes == 1 < total_bytes < all_gone:
            wanted_bytes = gone_bytes * total_bytes // all_gone  # what is begun belongs to the next part
        elif block_bytes < total_bytes < all_gone:
            block = (gone_bytes - 1) * total_bytes // (all_gone * block_bytes)
            since = gone_bytes + -all_gone * block * block_bytes // total_bytes  # from a whole byte on
            wanted_bytes = min(total_bytes, block * block_bytes + min(block_bytes, since))
        if not come or wanted_bytes > there_bytes:
            return run
    return None


def _cuts(region: Region, axis: int, num_tiles: int) -> list[int]:
    """Where tiles begin along an axis, and where the last one ends."""
    start, stop = region[axis]
    return [start + (stop - start) * tile // num_tiles for tile in range(num_tiles + 1)]


def _us(time_s: float) -> str:
    return f"{time_s * 1e6:.3f} us"
