"""The tiles of a step as tasks: loaded, computed, stored.

A tile is loaded (from main memory to the shared buffer, from there to the cores), its operators are computed,
and what does not stay in the cores is stored the same way back. Weights stay in the shared buffer as long as
nothing else needs their place. What is on its way takes bytes of the levels' pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.hardware.machine import Machine
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.events import TaskGraph
from tilewright.targets.npu.groups import StepGroup
from tilewright.targets.npu.kernels import Kernel, StepLane
from tilewright.targets.npu.policy import Policy
from tilewright.targets.npu.pools import Pool, PoolSizes
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.simulated_step import Load, SimulatedStep, Store, Weight
from tilewright.targets.npu.tiles import Passage
from tilewright.targets.npu.traffic import Account

_MIN_PARTS, _MAX_PARTS = 2, 8
"""In how many parts weights and tiles pass the shared buffer, in the simulation: one comes, one goes."""

_LOAD, _COMPUTE, _STORE = 0, 8, 16
"""In which order the phases of a tile are issued."""

_Operand = tuple[str, int]
"""The name of a value or weight, and the number of its load."""


@dataclass(eq=False)
class ClusterTasks:
    """The tasks of a cluster so far, and what those that follow pass: ports, pools, cores.

    `last_steps` are those that read a weight last, by its key.
    """

    machine: Machine
    policy: Policy
    residents: Residents
    account: Account
    last_steps: Mapping[str, int]

    def __post_init__(self) -> None:
        self.ports = ports_of(self.machine)
        self.tasks = TaskGraph(self.machine.num_cores_per_cluster)
        self.kernel: Kernel | None = None
        self.group: StepGroup | None = None
        self.lane: StepLane | None = None
        self.queues = 0  # the lane of the task graph whose units are those of a kernel's lane
        self.place = 0, 0  # of units that use cores: their lane of the task graph, on how many cores they run
        # After which weights are in the cores that hold them, by group and key.
        self.held: dict[tuple[int, str], list[int]] = {}
        self.computed: list[list[int]] = []  # by step and tile: the task after which it is in the cores
        self.stored: list[list[int]] = []  # the same: after which it is where it belongs
        self.before: list[int] = []  # what every further task waits for
        self.gate: list[int] = []  # what every further task waits for that uses the cores or their buffers
        self.open(self.residents.pools)

    @property
    def share(self) -> float:
        """What of the cores runs the step."""
        cores = self.lane or self.group or self.kernel
        return 1.0 if cores is None else cores.share

    def open(self, pools: PoolSizes) -> None:
        """Everything that passes from now on passes these pools."""
        self.local = Pool(self.tasks, self.ports.local.name, pools.local_bytes)
        self.shared: Pool | None = None
        if self.ports.shared is not None:
            self.shared = Pool(self.tasks, self.ports.shared.name, pools.shared_bytes)
        self.passing = self.shared  # from which takes what does not stay

    def settle(self) -> None:
        """What follows runs where the kernel, its lane or the group is that was entered last."""
        cores = self.group or self.kernel
        if cores is None:
            self.place = 0, 0
        elif self.lane is not None:
            self.place = self.queues, self.lane.num_cores
        else:
            self.place = cores.number + 1, cores.num_cores

    def uses_cores(self, unit: str) -> bool:
        """Whether a unit uses the cores or their buffers: main memory's port does without a shared one."""
        return unit != DMA or self.shared is None

    def task(
        self,
        unit: str,
        size_bytes: int,
        seconds: float,
        at: tuple[int, int, int],
        what: str,
        after: Iterable[int],
        name: str = "",
        part: int = 0,
    ) -> int:
        """A task after others, and after whatever the policy puts before it."""
        lane, num_cores = (0, 0) if unit == DMA else self.place
        before = {*after, *self.before}
        if self.gate and self.uses_cores(unit):
            before.update(self.gate)
        task = self.tasks.add(unit, seconds, at, what, before, size_bytes, name, lane, num_cores, part)
        if self.policy.overlap == "none":
            self.before = [task]
        return task


@dataclass(slots=True)
class _Source:
    """Where an operand comes from: `ready` are the tasks after which all of it is in the shared buffer, None
    where it passes through that part by part. `fetches` says that parts are still to be brought there, into
    a place that is taken."""

    ready: list[int] | None
    fetches: bool = False


class TileTasks:
    """One step while the tasks of its tiles are added."""

    def __init__(self, all_steps: ClusterTasks, step: SimulatedStep) -> None:
        all_steps.settle()
        self.all, self.step, self.tiling, self.share = all_steps, step, step.tiling, all_steps.share
        self.local, self.shared, self.account = all_steps.local, all_steps.shared, all_steps.account
        self.passing = all_steps.passing
        self.number, self.num_tiles = step.number, step.tiling.num_tiles
        self.pinned = frozenset(w.key for w in step.weights if w.key is not None)
        self.sources: dict[int, _Source] = {}  # of weights
        # What each tile brings, by its place among the step's weights and loads, and what it takes away.
        self.weights: list[tuple[int, Weight, Passage]] = []
        self.loads: list[tuple[int, Load, Passage]] = []
        self.going = [
            (store, passage)
            for store, passage in zip(step.stores, step.tiling.stores, strict=True)
            if store.scope is not Scope.LOCAL
        ]
        self.kept_bytes = 0
        # What is put together or copied is written as it arrives, other results as they are computed.
        earlier = [t for s in step.after for t in (*all_steps.computed[s], *all_steps.stored[s])]
        self.freed = [all_steps.tasks.join(earlier)] if earlier else []
        self.places = self.freed
        self.last_reads: dict[int, int] = {}
        # Of operands that are read again: what brought the last part, what read last what came, and the same
        # of the block before the one that comes.
        self.come: dict[_Operand, list[int]] = {}
        self.read_there: dict[_Operand, list[int]] = {}
        self.block_free: dict[_Operand, list[int]] = {}
        self.staying: list[int] = []  # what waits for their place
        self.written_there: dict[str, Pool] = {}  # where results are put together that the cores write again

    def add(self) -> None:
        """Add them, and note after which each tile is computed and stored."""
        step, tiling = self.step, self.tiling
        kept: list[int] = []
        if tiling.inside_bytes:
            kept += self.local.take(tiling.inside_bytes)
            self.kept_bytes += tiling.inside_bytes
        for place, (weight, passage) in enumerate(zip(step.weights, tiling.weights, strict=True)):
            self.sources[place] = self._source(weight, passage)
            if step.holds(weight):
                kept += self._held(place, weight, passage)
            elif passage.is_kept:
                kept += self._weight(place, weight, passage, -1)
            else:
                self.weights.append((place, weight, passage))
        staying_bytes = self._staying_bytes()
        if self.passing is not None and staying_bytes:
            self.staying = self.passing.take(staying_bytes, self.pinned)
        for part, (load, passage) in enumerate(zip(step.loads, tiling.loads, strict=True)):
            if self._comes_first(load, passage):
                kept += self._load(part, load, passage, -1)
            else:
                self.loads.append((part, load, passage))
        ends: list[int] = []
        puts: list[int] = []
        for tile in range(self.num_tiles):
            end, put = self._tile(tile, [*kept, *ends[: tile + 1 - tiling.num_at_once][-1:]])
            ends.append(end)
            puts.append(put)
        for place, (weight, passage) in enumerate(zip(step.weights, tiling.weights, strict=True)):
            self._leave(place, weight, passage)
        last = puts[-1:] if tiling.stores_last else ends[-tiling.num_at_once :]
        self.local.release(self.kept_bytes, last)
        if self.passing is not None:
            self.passing.release(staying_bytes, [*ends[-tiling.num_at_once :], *puts[-tiling.num_at_once :]])
        self.all.computed.append(ends)
        self.all.stored.append(puts)

    def _comes_first(self, load: Load, passage: Passage) -> bool:
        """Whether an operand is brought before the first tile: what is distributed anew, it is as a whole."""
        return passage.is_kept or (load.moved_bytes > 0 and self.step.kind is Kind.INSTANCE)

    def _staying_bytes(self) -> int:
        """What the shared buffer holds of operands that the cores read again, or write."""
        weights = zip(range(len(self.step.weights)), self.tiling.weights, strict=True)
        passages = [p for place, p in weights if self.sources[place].ready is None]
        return sum(
            p.outer_held_bytes
            for p in (*passages, *self.tiling.loads, *self.tiling.stores)
            if self.shared is not None and _stays(p)
        )

    def _tile(self, tile: int, before: list[int]) -> tuple[int, int]:
        """The tasks after which a tile is computed, and stored."""
        goes = tile == self.num_tiles - 1 or not self.tiling.stores_last
        going = self.going if goes else []
        out_bytes = sum(passage.held_bytes for _, passage in going)
        self.places = [*self.freed, *(self.local.take(out_bytes) if out_bytes else ())]
        ready = [*before, *self.places]
        held_bytes = 0
        for place, weight, passage in self.weights:
            ready += self._weight(place, weight, passage, tile)
            held_bytes += passage.held_bytes
        for part, load, passage in self.loads:
            ready += self._load(part, load, passage, tile)
            held_bytes += passage.held_bytes
        for phase, work in enumerate(self.step.works):
            seconds = work.seconds / self.num_tiles
            at = (self.number, tile, _COMPUTE + min(phase, _STORE - _COMPUTE - 1))
            ready = [self.all.task(work.unit, 0, seconds, at, "compute", ready)]
        end = self.all.tasks.join(ready)
        self.local.release(held_bytes, [end])
        put = end
        if going:
            put = self.all.tasks.join([self._store(s, p, tile, end) for s, p in going])
        self.local.release(out_bytes, [put])
        return end, put

    def _part(self, total_bytes: int, tile: int) -> int:
        """A tile's share of bytes; all of them before the first tile."""
        start, stop = self._ends(total_bytes, tile)
        return stop - start

    def _source(self, weight: Weight, passage: Passage) -> _Source:
        """Finds a weight in the shared buffer, or takes the place for one that is to stay there."""
        self.account.charges = not passage.is_counted
        if weight.key in self.all.residents.scopes:
            return _Source([])
        if self.shared is None or not passage.outer_bytes:
            return _Source(None)
        there = self.shared.find(weight.key)
        if there is not None:
            return _Source([there])
        if passage.outer_held_bytes < weight.size_bytes:
            return _Source(None)
        if self._is_last(weight) and passage.moved_bytes == passage.outer_bytes:
            return _Source(None)
        free = self.shared.take(weight.size_bytes, self.pinned)
        if not passage.is_kept and passage.moved_bytes == passage.outer_bytes:
            return _Source(free, fetches=True)  # tile by tile
        # In parts, so that what an earlier step needs may come between.
        parts = _parts(passage.outer_bytes, -(-passage.outer_bytes // _MAX_PARTS))
        return _Source([self._fetch(weight, part, -1, free) for _, part in parts] or free)

    def _is_last(self, weight: Weight) -> bool:
        """Whether no later step reads it, so that nothing is gained by keeping it as a whole."""
        return weight.key is None or self.all.last_steps.get(weight.key) == self.number

    def _fetch(self, weight: Weight, size_bytes: int, tile: int, after: Sequence[int]) -> int:
        """Brings a part of a weight to the shared buffer."""
        self.account.from_main(size_bytes)
        at = (self.number, tile - 1, _LOAD)
        return self._moved(DMA, size_bytes, at, "fetch", after, weight.key or "")

    def _weight(self, place: int, weight: Weight, passage: Passage, tile: int) -> list[int]:
        """Brings a tile's part of a weight to the cores; all of it before the first tile."""
        self.account.charges = not passage.is_counted
        free = self.local.take(passage.held_bytes)
        if passage.is_kept:
            self.kept_bytes += passage.held_bytes
        size_bytes = self._part(passage.moved_bytes, tile)
        source = self.sources[place]
        at = (self.number, tile, _LOAD + 1)
        name = weight.key or ""
        resident = self.all.residents.scopes.get(name)
        self.account.weight_to_cores(size_bytes, weight.num_copies, resident is Scope.LOCAL)
        if resident is not None:
            return [self._moved(CORE_DMA, size_bytes, at, "weights", free, name)]
        if self.shared is None:
            self.account.from_main(size_bytes)
            return [self._moved(DMA, size_bytes, at, "weights", free, name)]
        if source.ready is None:
            held_bytes = min(passage.outer_held_bytes, -(-size_bytes // _MIN_PARTS))
            if self.passing is not self.shared and self.passing is not None:
                held_bytes = min(held_bytes, max(1, self.passing.capacity_bytes // _MAX_PARTS))
            return self._through(
                size_bytes, passage, at, ("fetch", "weights"), name, [], free, held_bytes=held_bytes
            )
        ready = source.ready
        if source.fetches:
            ready = [self._fetch(weight, self._part(passage.outer_bytes, tile), tile, ready)]
        task = self._moved(CORE_DMA, size_bytes, at, "weights", (*ready, *free), name)
        self.last_reads[place] = task
        self.shared.read(weight.key, task)
        return [task]

    def _held(self, place: int, weight: Weight, passage: Passage) -> list[int]:
        """What brings a weight to the cores that hold it, in this step or in an earlier one."""
        assert self.step.group is not None
        key = (self.step.group.number, weight.key or "")
        if passage.moved_bytes:
            self.all.held[key] = self._weight(place, weight, passage, -1)
        return self.all.held.get(key, [])

    def _moved(
        self,
        port: str,
        size_bytes: int,
        at: tuple[int, int, int],
        what: str,
        after: Iterable[int],
        name: str,
        part: int = 0,
    ) -> int:
        """Bytes pass the port of main memory, or that of the cores."""
        seconds_of = self.all.ports.main_s if port == DMA else self.all.ports.local_s
        seconds = seconds_of(size_bytes, self.share)
        return self.all.task(port, size_bytes, seconds, at, what, after, name, part)

    def _leave(self, place: int, weight: Weight, passage: Passage) -> None:
        """A weight that was brought to the shared buffer as a whole stays there, or leaves."""
        source = self.sources[place]
        if weight.key in self.all.residents.scopes:
            return
        if self.shared is None or source.ready is None:
            return
        last = self.last_reads[place]
        if self.shared.find(weight.key) is not None:
            if weight.key is not None and self._is_last(weight):
                self.shared.forget(weight.key)
            return
        if self.all.policy.keeps_weights and weight.key is not None:
            self.shared.keep(weight.key, weight.size_bytes, last)
        else:
            self.shared.release(weight.size_bytes, [last])

    def _through(
        self,
        size_bytes: int,
        passage: Passage,
        at: tuple[int, int, int],
        what: tuple[str, str],
        name: str,
        ready: Sequence[int],
        free: Sequence[int],
        part: int = 0,
        held_bytes: int | None = None,
    ) -> list[int]:
        """Brings bytes that are `ready` in main memory through the shared buffer, as many as it
        holds or `held_bytes` at a time, to a place in the cores that is `free`."""
        assert self.passing is not None
        number, tile, phase = at
        last = [*ready, *free, *self.come.get((name, part), ())]
        if _stays(passage):
            return self._read_again(passage, at, what, (name, part), ready, last)
        come = [min(passage.outer_bytes, end) for end in self._ends(passage.moved_bytes, tile)]
        if held_bytes is None:
            held_bytes = passage.outer_held_bytes
        for held, moved in _parts(come[1] - come[0], held_bytes):
            taken = self.passing.take(held, self.pinned)
            self.account.from_main(moved)
            there = self._moved(DMA, moved, (number, tile, phase - 1), what[0], (*taken, *ready), name, part)
            last = [self._moved(CORE_DMA, moved, at, what[1], (there, *last), name, part)]
            self.passing.release(held, last)
        again = size_bytes - (come[1] - come[0])
        return [self._moved(CORE_DMA, again, at, what[1], last, name, part)] if again else last

    def _ends(self, total_bytes: int, tile: int) -> tuple[int, int]:
        """Where a tile's share of bytes begins and ends; all of them before the first tile."""
        if tile < 0:
            return 0, total_bytes
        count = self.num_tiles
        return total_bytes * tile // count, total_bytes * (tile + 1) // count

    def _read_again(
        self,
        passage: Passage,
        at: tuple[int, int, int],
        what: tuple[str, str],
        operand: _Operand,
        ready: Sequence[int],
        last: list[int],
    ) -> list[int]:
        """The same of what the shared buffer keeps for tiles to come: what is held there is read as often as
        it has to be, then the next takes its place."""
        number, tile, phase = at
        (come, read), *edges = _blocks(passage, self._ends(passage.moved_bytes, tile), self.num_tiles)
        for come_end, read_end in edges:
            if come and (come % passage.outer_held_bytes == 0 or come_end - come >= passage.outer_held_bytes):
                self.block_free[operand] = self.read_there[operand]
            if come_end > come:
                self.account.from_main(come_end - come)
                before = (*self.block_free.get(operand, self.staying), *ready)
                there = self._moved(
                    DMA, come_end - come, (number, tile, phase - 1), what[0], before, *operand
                )
                last = [self._moved(CORE_DMA, come_end - come, at, what[1], (there, *last), *operand)]
                self.come[operand] = [there]
            again = read_end - read - (come_end - come)
            last = [self._moved(CORE_DMA, again, at, what[1], last, *operand)] if again else last
            self.read_there[operand] = last
            come, read = come_end, read_end
        return last

    def _load(self, part: int, load: Load, passage: Passage, tile: int) -> list[int]:
        """What a tile of the step needs of an operand is there; all of it before the first tile."""
        self.account.charges = not passage.is_counted
        made = self._made(load, tile)
        ready = [] if made is None else [made]
        at = (self.number, tile, _LOAD + 2)
        is_passed_on = self.step.kind is not Kind.INSTANCE
        free = self.places if is_passed_on else []
        if load.scope is Scope.LOCAL:
            moved = self._part(load.size_bytes if is_passed_on else load.moved_bytes, tile)
            self.account.between_cores(moved)
            return (
                [self._moved(CORE_DMA, moved, at, "move", (*ready, *free), load.value, part)]
                if moved
                else ready
            )
        if not is_passed_on:
            free = self.local.take(passage.held_bytes)
        if passage.is_kept:
            self.kept_bytes += passage.held_bytes
        size_bytes = self._part(passage.moved_bytes, tile)
        self.account.to_cores(size_bytes)
        if load.scope is Scope.SHARED:
            return [self._moved(CORE_DMA, size_bytes, at, "load", (*ready, *free), load.value, part)]
        if self.shared is None:
            self.account.from_main(size_bytes)
            return [self._moved(DMA, size_bytes, at, "load", (*ready, *free), load.value, part)]
        return self._through(size_bytes, passage, at, ("load", "load"), load.value, ready, free, part)

    def _store(self, store: Store, passage: Passage, tile: int, end: int) -> int:
        """Takes a tile of a result away from the cores."""
        self.account.charges = not passage.is_counted
        part = -1 if self.tiling.stores_last else tile
        size_bytes = self._part(passage.moved_bytes, part)
        at = (self.number, tile, _STORE)
        outer_bytes = self._part(passage.outer_bytes, part)
        self.account.from_cores(size_bytes, outer_bytes)
        if self.shared is None:
            return self._moved(DMA, size_bytes, at, "store", [end], store.value)
        if self.passing is None or store.scope is Scope.SHARED:
            return self._moved(CORE_DMA, size_bytes, at, "store", [end], store.value)
        pool, before = self.passing, [end]
        if _stays(passage):
            # What is put together there, or goes on, takes turns in the place that the step holds for it.
            held_bytes = passage.outer_held_bytes
            pool = self.written_there.setdefault(store.value, Pool(self.all.tasks, store.value, held_bytes))
            before += self.staying
        task = end
        parts = _parts(outer_bytes, passage.outer_held_bytes) or [(0, 0)]
        for (_, part), inner in zip(parts, _even(size_bytes, len(parts)), strict=True):
            held = min(passage.outer_held_bytes, inner)
            taken = pool.take(held, self.pinned)
            task = self._moved(CORE_DMA, inner, at, "store", (*before, *taken), store.value)
            if part:
                task = self._moved(DMA, part, (self.number, tile, _STORE + 1), "store", [task], store.value)
            pool.release(held, [task])
        return task

    def _made(self, load: Load, tile: int) -> int | None:
        """The task after which what a tile reads is where it lives; None for inputs of the network."""
        if load.producer is None:
            return None
        made = (self.all.computed if load.scope is Scope.LOCAL else self.all.stored)[load.producer]
        return made[min(load.tiles[tile], len(made) - 1)] if load.tiles and tile >= 0 else made[-1]


def _stays(passage: Passage) -> bool:
    """Whether the shared buffer keeps what comes from main memory, or goes there, for tiles to come."""
    return 0 < passage.outer_bytes < passage.moved_bytes


def _even(size_bytes: int, count: int) -> list[int]:
    """Bytes in so many parts."""
    return [size_bytes * (i + 1) // count - size_bytes * i // count for i in range(count)]


def _parts(size_bytes: int, held_bytes: int) -> list[tuple[int, int]]:
    """Bytes in parts: how many a part takes on its way, and how many come. Of many small parts several count
    as one, which takes the place of two: one is used, another one arrives."""
    if not size_bytes:
        return []
    count = min(_MAX_PARTS, -(-size_bytes // max(1, held_bytes)))
    ends = [size_bytes * i // count for i in range(count + 1)]
    return [(min(held_bytes, stop - start), stop - start) for start, stop in pairwise(ends)]


def _blocks(passage: Passage, ends: tuple[int, int], num_tiles: int) -> list[tuple[int, int]]:
    """How many bytes have come, and how many have been read, where a tile's share of what is read begins and
    ends and, between, wherever a block of what is held gives way to the next one.

    Blocks come at the speed at which they are first read. Of many more blocks than tiles, several come at a
    time, one behind the other, in not more parts than are simulated.
    """
    outer, moved, held = passage.outer_bytes, passage.moved_bytes, passage.outer_held_bytes
    num_blocks = -(-outer // held)
    if num_blocks > 2 * num_tiles:
        # Each part is a block at least, so that it comes when the part before has been read.
        count = max(1, min(_MAX_PARTS, (ends[1] - ends[0]) * outer // (moved * held) - 1))
        reads = [ends[0] + (ends[1] - ends[0]) * n // count for n in range(count + 1)]
        return [(outer * read // moved, read) for read in reads]
    starts = [-(-moved * min(outer, held * block) // outer) for block in range(num_blocks + 1)]

    def come_at(read: int) -> int:
        block = min(num_blocks - 1, max(n for n, start in enumerate(starts) if start <= read))
        return min(outer, held * (block + 1), held * block + read - starts[block])

    edges = [ends[0], *(start for start in starts if ends[0] < start < ends[1]), ends[1]]
    return [(come_at(edge), edge) for edge in edges]
