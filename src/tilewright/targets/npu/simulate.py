"""The simulator: the steps of one cluster on its units, in time, bytes and energy. All figures are estimates.

A step's work is cut into tiles. A tile is loaded (from DDR to the shared buffer, from there to the cores),
its operators are computed, and what does not stay in the cores is stored the same way back. Weights are
fetched once for a step, unless the shared buffer still holds them, and reach all cores at once. With overlap
loading and weights run ahead of computing as far as buffers allow, and a tile waits for what it needs alone;
without, everything follows in sequence, with a barrier of all cores after each step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from tilewright.hardware.capacity import shared_weight_bytes
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.ir.region import Region, union_volume, volume
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.events import Run, TaskGraph
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.steps import SimulatedStep

Overlap = Literal["none", "tiles", "layers"]
"""`none`: phases and steps in sequence. `tiles`: a step's tiles overlap. `layers`: steps overlap, too."""

_TILES_AHEAD = 2  # loaded tiles that wait in the cores while another one is computed
_WEIGHTS_AHEAD = 2  # steps whose weights the cores hold at least: the one that computes, and the next


@dataclass(frozen=True, slots=True)
class Policy:
    """How steps are run: what overlaps, whether the shared buffer keeps weights from step to step, and
    whether there is one kernel or one for each step."""

    overlap: Overlap = "layers"
    keeps_weights: bool = True
    launches: Literal["once", "each step"] = "once"


GRAPHTURBO = Policy()
"""What the paper's system does."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that levels of memory deliver and take in, for one run of one cluster."""

    main_read: int
    main_written: int
    shared_read: int
    shared_written: int
    local_read: int
    local_written: int
    between_cores: int


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What one cluster does with one batch. Energy is by level, unit, and `static`."""

    time_s: float
    busy_s: Mapping[str, float]
    traffic: Traffic
    energy_pj: Mapping[str, float]
    macs: float
    runs: tuple[Run, ...]
    steps: tuple[SimulatedStep, ...]
    lower_bound_s: float
    bound_by: str

    @property
    def utilization(self) -> dict[str, float]:
        """Share of the time that each unit runs."""
        return {unit: busy / self.time_s for unit, busy in self.busy_s.items() if self.time_s}

    @property
    def energy_j(self) -> float:
        """All energy of one cluster, its share of the static power included."""
        return sum(self.energy_pj.values()) * 1e-12

    @property
    def gap(self) -> float:
        """How far the time is above its lower bound, relative to the bound."""
        return self.time_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0


def static_power_w(machine: Machine) -> float:
    """One cluster's share of what the machine takes while idle."""
    return (machine.static_power_w or 0.0) / machine.num_clusters


def simulate(
    steps: Sequence[SimulatedStep],
    machine: Machine,
    policy: Policy = GRAPHTURBO,
    *,
    weight_capacity_bytes: int | None = None,
    least_seconds: Mapping[str, float] | None = None,
) -> Simulation:
    """Run the steps of one cluster.

    `weight_capacity_bytes` is what of the shared buffer weights may take; None: the share that the machine
    keeps for them. `least_seconds` is what each unit takes at least, however the network is cut, for the
    bound; None: what these steps take.

    Raises:
        MachineError: the machine has no buffers of cores, or no rate for what it has to move.
    """
    return _Simulator(tuple(steps), machine, policy, weight_capacity_bytes, least_seconds or {}).run()


@dataclass(frozen=True, slots=True)
class _Phase:
    unit: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A weight that a step brings from DDR; `replaces` are weights that it takes the place of."""

    name: str | None
    seconds: float
    replaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a step takes: weights, then for all its tiles together loading, computing, storing."""

    fetches: tuple[_Fetch, ...]
    hoist_s: float
    load: tuple[_Phase, ...]
    compute: tuple[_Phase, ...]
    store: tuple[_Phase, ...]

    def phases(self) -> list[tuple[_Phase, str]]:
        """All of them in sequence, with what they do."""
        weights = [*(_Phase(DMA, f.seconds) for f in self.fetches), _Phase(CORE_DMA, self.hoist_s)]
        listed = ((weights, "weights"), (self.load, "load"), (self.compute, "compute"), (self.store, "store"))
        return [(phase, what) for phases, what in listed for phase in phases if phase.seconds]


class _Simulator:
    def __init__(
        self,
        steps: tuple[SimulatedStep, ...],
        machine: Machine,
        policy: Policy,
        weight_capacity_bytes: int | None,
        least_seconds: Mapping[str, float],
    ) -> None:
        self.steps, self.machine, self.policy = steps, machine, policy
        self.least_seconds = least_seconds
        self.ports = ports_of(machine)
        self.main_rate, self.local_rate = self.ports.main_bytes_per_s, self.ports.local_bytes_per_s
        self.bytes = dict.fromkeys(Traffic.__slots__, 0)
        self.energy_pj: dict[str, float] = {}
        share = shared_weight_bytes(machine)
        self.weight_capacity_bytes = share if weight_capacity_bytes is None else weight_capacity_bytes
        self.cached: OrderedDict[str, int] = OrderedDict()
        self.cached_bytes = 0
        self.barrier_s = machine.overheads.barrier_ns * 1e-9

    def run(self) -> Simulation:
        costs = [self._cost(step) for step in self.steps]
        if self.policy.overlap == "layers":
            runs = self._overlapped(costs)
            time_s = max((run.end_s for run in runs), default=0.0)
        else:
            runs, time_s = self._in_sequence(costs)
        num_launches = 1 if self.policy.launches == "once" else len(self.steps)
        time_s += num_launches * self.machine.overheads.kernel_launch_ns * 1e-9
        busy: dict[str, float] = {}
        for cost in costs:
            for phase, _ in cost.phases():
                busy[phase.unit] = busy.get(phase.unit, 0.0) + phase.seconds
        for unit, rate in ((DMA, self.main_rate), (CORE_DMA, self.local_rate)):
            # All that these do is move bytes, at their rate.
            moved_pj = busy.get(unit, 0.0) * rate * self.ports.pj_per_byte.get(unit, 0.0)
            if moved_pj:
                self.energy_pj[unit] = self.energy_pj.get(unit, 0.0) + moved_pj
        self.energy_pj["static"] = static_power_w(self.machine) * time_s * 1e12
        bound_s, bound_by = self._lower_bound()
        macs = sum(work.macs for step in self.steps for work in step.works)
        return Simulation(
            time_s,
            busy,
            Traffic(**self.bytes),
            self.energy_pj,
            macs,
            tuple(runs),
            self.steps,
            bound_s,
            bound_by,
        )

    def _lower_bound(self) -> tuple[float, str]:
        """What no way to cut, order and place the network goes below: each unit's work on all cores with full
        tiles; each weight, input and result once over DDR's port."""
        seconds: dict[str, float] = {}
        for step in self.steps:
            for work in step.works:
                seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds
        for unit, own_s in seconds.items():
            # Slices may leave out rows between those that they read.
            seconds[unit] = min(own_s, self.least_seconds.get(unit, own_s))
        weights = _bytes_once(
            (w.name, w.region, w.size_bytes) for s in self.steps for w in s.weights if w.name is not None
        )
        rows = sum(w.size_bytes for s in self.steps for w in s.weights if w.name is None)
        inputs = _bytes_once(
            (x.value, x.region, x.size_bytes) for s in self.steps for x in s.loads if x.producer is None
        )
        results = sum(x.size_bytes for s in self.steps for x in s.stores if x.is_result)
        seconds[DMA] = (weights + rows + inputs + results) / self.main_rate
        unit = max(seconds, key=lambda name: seconds[name])
        return seconds[unit], unit

    def _cost(self, step: SimulatedStep) -> _Cost:
        """Seconds of a step's phases; counts its bytes and energy, and what the shared buffer keeps."""
        fetches: list[_Fetch] = []
        all_bytes = 0
        for weight in step.weights:
            all_bytes += weight.size_bytes
            replaces = self._fetched(weight.key, weight.size_bytes)
            if replaces is not None:
                fetches.append(_Fetch(weight.key, weight.size_bytes / self.main_rate, replaces))
                self._count("main_read", weight.size_bytes)
                self._count("shared_written", weight.size_bytes)
        self._count("shared_read", all_bytes)
        self._count("local_written", all_bytes * self.machine.num_cores_per_cluster)
        is_concat = step.kind is Kind.CONCAT
        read = {scope: sum(x.size_bytes for x in step.loads if x.scope is scope) for scope in Scope}
        written = {scope: sum(x.size_bytes for x in step.stores if x.scope is scope) for scope in Scope}
        # Buffers that are put together move whether or not they change cores; their move makes the result.
        moved = read[Scope.LOCAL] if is_concat else sum(x.moved_bytes for x in step.loads)
        inwards = read[Scope.SHARED] + read[Scope.MAIN]
        outwards = written[Scope.SHARED] + written[Scope.MAIN]
        self._count("main_read", read[Scope.MAIN])
        self._count("main_written", written[Scope.MAIN])
        self._count("shared_written", read[Scope.MAIN] + outwards)
        self._count("shared_read", inwards + written[Scope.MAIN])
        self._count("local_written", sum(written.values()) + (0 if is_concat else inwards + moved))
        self._count("local_read", outwards + moved + (0 if is_concat else sum(read.values())))
        self.bytes["between_cores"] += moved
        for work in step.works:
            if work.energy_pj:
                self.energy_pj[work.unit] = self.energy_pj.get(work.unit, 0.0) + work.energy_pj
        through = self.ports.shared is not None  # else what is outside comes to the cores as it is fetched
        return _Cost(
            tuple(fetches),
            all_bytes * through / self.local_rate,
            (
                _Phase(DMA, read[Scope.MAIN] / self.main_rate),
                _Phase(CORE_DMA, (inwards * through + moved) / self.local_rate),
            ),
            tuple(_Phase(work.unit, work.seconds) for work in step.works),
            (
                _Phase(CORE_DMA, outwards * through / self.local_rate),
                _Phase(DMA, written[Scope.MAIN] / self.main_rate),
            ),
        )

    def _fetched(self, name: str | None, size: int) -> tuple[str, ...] | None:
        """Which weights leave the shared buffer for this one: those used longest ago. None: it is there."""
        capacity = self.weight_capacity_bytes
        if name is None or not self.policy.keeps_weights or size > capacity:
            return ()
        if name in self.cached:
            self.cached.move_to_end(name)
            return None
        gone: list[str] = []
        while self.cached_bytes + size > capacity:
            old, old_size = self.cached.popitem(last=False)
            self.cached_bytes -= old_size
            gone.append(old)
        self.cached[name] = size
        self.cached_bytes += size
        return tuple(gone)

    def _count(self, name: str, size: int) -> None:
        """Bytes at a level, and the energy of the accesses."""
        where, way = name.split("_")
        level: Level | None = getattr(self.ports, where)
        if level is None:
            return
        self.bytes[name] += size
        access_pj = level.read_pj if way == "read" else level.write_pj
        if access_pj and size:
            access_bytes = level.word_bits * level.words_per_access / 8
            self.energy_pj[level.name] = self.energy_pj.get(level.name, 0.0) + size / access_bytes * access_pj

    def _in_sequence(self, costs: Sequence[_Cost]) -> tuple[list[Run], float]:
        """Steps one after another; the phases of a step in sequence, or overlapping tile by tile."""
        runs: list[Run] = []
        now = 0.0
        for step, cost in zip(self.steps, costs, strict=True):
            phases = cost.phases()
            by_unit: dict[str, float] = {}
            for phase, _ in phases:
                by_unit[phase.unit] = by_unit.get(phase.unit, 0.0) + phase.seconds
            total = sum(by_unit.values())
            spent = total
            if self.policy.overlap == "tiles":
                longest = max(by_unit.values(), default=0.0)
                spent = longest + (total - longest) / step.num_tiles
            at = now
            for phase, what in phases:
                taken = phase.seconds * spent / total
                runs.append(Run(phase.unit, at, at + taken, step.number, what))
                at += taken
            now += spent + self.barrier_s
        return runs, now

    def _overlapped(self, costs: Sequence[_Cost]) -> list[Run]:
        """All tiles of all steps as tasks that wait for what they need, and for free capacity."""
        tasks = TaskGraph()
        computed: list[list[int]] = []  # by step and tile: the task after which the tile is in the cores
        stored: list[list[int]] = []  # the same: after which it is where it belongs
        loaded: list[int] = []  # `computed` of all tiles that are loaded, in order
        there: dict[str, int] = {}  # the fetch that brought a weight
        used: dict[str, int] = {}  # the last task that read it from the shared buffer
        gates = self._weights_gates()
        for step, cost in zip(self.steps, costs, strict=True):
            number = step.number
            fetched: list[int] = []
            for fetch in cost.fetches:
                gone = [used[name] for name in fetch.replaces if name in used]
                task = tasks.add(DMA, fetch.seconds, (number, -2, 0), "weights", gone)
                fetched.append(task)
                if fetch.name is not None:
                    there[fetch.name] = task
            gate = gates[number]
            freed = [] if gate is None else computed[gate][-1:]
            known = [there[w.key] for w in step.weights if w.key in there]
            hoist = tasks.add(CORE_DMA, cost.hoist_s, (number, -1, 0), "weights", [*fetched, *known, *freed])
            used.update((w.key, hoist) for w in step.weights if w.key is not None)
            free = [task for earlier in step.after for task in (*computed[earlier], *stored[earlier])]
            ends: list[int] = []
            puts: list[int] = []
            for tile in range(step.num_tiles):
                ready = [
                    self._made(load.producer, load.tiles, tile, load.scope, computed, stored)
                    for load in step.loads
                    if load.producer is not None
                ]
                if any(phase.seconds for phase in cost.load):
                    # What is loaded lies in the cores until its tile has been computed.
                    ready += loaded[-_TILES_AHEAD:][:1] if len(loaded) >= _TILES_AHEAD else []
                    ready = self._phases(tasks, cost.load, step, tile, 0, "load", ready)
                before = [*ready, hoist, *free, *ends[-1:]]
                before = self._phases(tasks, cost.compute, step, tile, 4, "compute", before)
                end = (
                    before[0]
                    if len(before) == 1
                    else tasks.add(CORE_DMA, 0.0, (number, tile, 10), "", before)
                )
                ends.append(end)
                if any(phase.seconds for phase in cost.load):
                    loaded.append(end)
                (put,) = self._phases(tasks, cost.store, step, tile, 12, "store", [end])
                puts.append(put)
            computed.append(ends)
            stored.append(puts)
        return tasks.run()

    @staticmethod
    def _phases(
        tasks: TaskGraph,
        phases: Iterable[_Phase],
        step: SimulatedStep,
        tile: int,
        first: int,
        what: str,
        after: list[int],
    ) -> list[int]:
        """A tile's share of phases in sequence; what to wait for afterwards."""
        for number, phase in enumerate(phases):
            if phase.seconds:
                seconds = phase.seconds / step.num_tiles
                after = [tasks.add(phase.unit, seconds, (step.number, tile, first + number), what, after)]
        return after

    def _weights_gates(self) -> list[int | None]:
        """For each step the last one that must be done before its weights fit into the cores beside those
        in use."""
        capacity = self.ports.local.capacity_for_bytes(TensorKind.WEIGHT) or 0
        before = [0, *accumulate(sum(w.size_bytes for w in step.weights) for step in self.steps)]
        gates: list[int | None] = []
        for number in range(len(self.steps)):
            # From here back to the step found, weights take more than the capacity.
            last = bisect_left(before, before[number + 1] - capacity) - 1
            gate = min(last, number - _WEIGHTS_AHEAD)
            gates.append(gate if gate >= 0 else None)
        return gates

    @staticmethod
    def _made(
        producer: int,
        needs: tuple[int, ...],
        tile: int,
        scope: Scope,
        computed: Sequence[Sequence[int]],
        stored: Sequence[Sequence[int]],
    ) -> int:
        """The task after which what a tile reads is there."""
        made = (computed if scope is Scope.LOCAL else stored)[producer]
        return made[min(needs[tile], len(made) - 1)] if needs else made[-1]


def _bytes_once(parts: Iterable[tuple[str, Region, int]]) -> float:
    """Bytes of all parts of values, by name, region and size, that are read, however often."""
    regions: dict[str, set[Region]] = {}
    element_bytes: dict[str, float] = {}
    for name, region, size in parts:
        if size:
            regions.setdefault(name, set()).add(region)
            element_bytes[name] = size / volume(region)
    return sum(union_volume(found) * element_bytes[value] for value, found in regions.items())
