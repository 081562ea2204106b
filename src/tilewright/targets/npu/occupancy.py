"""What levels of memory hold over the time of a run: placed buffers, and what passes behind them.

Worked out from a plan and its runs alone: each thing is in a level from the beginning of the run that brings
or makes it to the end of the last one that needs it there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.npu.simulate import Simulation
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.tiles import Passage
from tilewright.targets.simulated import Curve, LevelOverTime, NetworkPlan, UnitRun

PLACED, RESIDENT, WEIGHTS, PREFETCHED, TILES = "placed", "resident", "weights", "prefetched", "tiles"
_KINDS = (PLACED, RESIDENT, WEIGHTS, PREFETCHED, TILES)


class Held(NamedTuple):
    """Bytes in a level, as what they are there, from when to when."""

    level: Scope
    kind: str
    start_s: float
    end_s: float
    size_bytes: int


def levels_over_time(plan: NetworkPlan, simulation: Simulation) -> tuple[LevelOverTime, ...]:
    """What each level holds when. O(n log n) in buffers and runs."""
    changes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for held in (*_placed(plan), *_resident(simulation), *_Passing(plan, simulation).all()):
        if held.size_bytes and held.end_s > held.start_s:
            entries = [(held.start_s, held.size_bytes), (held.end_s, -held.size_bytes)]
            changes[str(held.level), held.kind] += entries
    return tuple(
        LevelOverTime(
            level,
            {kind: _curve(changes[level.name, kind]) for kind in _KINDS if (level.name, kind) in changes},
        )
        for level in plan.levels
    )


def _placed(plan: NetworkPlan) -> Iterator[Held]:
    """Buffers, from when they begin to be made to the end of their last readers.

    What is written in place of another buffer, which is no smaller, counts from the end of that.
    """
    for buffer in plan.buffers:
        under = buffer.in_place_of
        start_s = buffer.start_s if under is None else plan.buffers[under].end_s
        yield Held(Scope(buffer.level), PLACED, start_s, buffer.end_s, buffer.size_bytes)


def _resident(simulation: Simulation) -> Iterator[Held]:
    """Weights that stay from batch to batch."""
    sizes = {weight.key: weight.size_bytes for step in simulation.steps for weight in step.weights}
    for key, level in simulation.residents.scopes.items():
        yield Held(level, RESIDENT, 0.0, simulation.time_s, sizes[key])


class _Passing:
    """Weights, operands and results on their way through the levels."""

    def __init__(self, plan: NetworkPlan, simulation: Simulation) -> None:
        self.steps = simulation.steps
        self.runs: list[list[UnitRun]] = [[] for _ in self.steps]
        for run in sorted(simulation.runs, key=attrgetter("start_s", "end_s")):
            self.runs[run.step].append(run)
        self.has_shared = any(level.name == Scope.SHARED for level in plan.levels)

    def all(self) -> Iterator[Held]:
        for step in self.steps:
            computing: dict[int, list[UnitRun]] = defaultdict(list)
            for run in self.runs[step.number]:
                if run.what == "compute":
                    computing[run.tile].append(run)
            used = {tile: (runs[0].start_s, runs[-1].end_s) for tile, runs in computing.items()}
            yield from self._in_cores(step, used)
            yield from self._through_shared(step)
        yield from self._kept_weights()

    def _in_cores(self, step: SimulatedStep, used: dict[int, tuple[float, float]]) -> Iterator[Held]:
        """Of one step; `used` is from when to when each of its tiles is computed."""
        runs = self.runs[step.number]
        end_s = max((run.end_s for run in runs), default=0.0)
        last_s = max((end for _, end in used.values()), default=end_s)
        first_s = min((start for start, _ in used.values()), default=end_s)
        for what, names, passages in _incoming(step):
            for name, together in _by_name(names, passages).items():
                arriving = [r for r in runs if r.what == what and r.name == name and self._enters_cores(r)]
                for tile, parts in groupby(sorted(arriving, key=attrgetter("tile")), key=attrgetter("tile")):
                    start_s = min(run.start_s for run in parts)
                    size_bytes = sum(p.held_bytes for p in together if p.is_kept == (tile < 0))
                    begin_s, until_s = (first_s, last_s) if tile < 0 else used.get(tile, (end_s, end_s))
                    if what == "load":
                        yield Held(Scope.LOCAL, TILES, start_s, until_s, size_bytes)
                        continue
                    yield Held(Scope.LOCAL, PREFETCHED, start_s, begin_s, size_bytes)
                    yield Held(Scope.LOCAL, WEIGHTS, begin_s, until_s, size_bytes)
        yield from self._results_in_cores(step, used)

    def _results_in_cores(self, step: SimulatedStep, used: dict[int, tuple[float, float]]) -> Iterator[Held]:
        """Results that leave, from their computation, or else from when they arrive, until they are away."""
        runs = self.runs[step.number]
        for name, together in _by_name([s.value for s in step.stores], step.tiling.stores).items():
            size_bytes = sum(passage.held_bytes for passage in together)
            leaving = [r for r in runs if r.what == "store" and r.name == name and self._enters_cores(r)]
            for tile, parts in groupby(sorted(leaving, key=attrgetter("tile")), key=attrgetter("tile")):
                arriving = [r.start_s for r in runs if r.what in ("load", "move") and r.tile == tile]
                stored = list(parts)
                start_s = used[tile][0] if tile in used else min(arriving, default=stored[0].start_s)
                yield Held(Scope.LOCAL, TILES, start_s, max(r.end_s for r in stored), size_bytes)

    def _enters_cores(self, run: UnitRun) -> bool:
        """Whether a run brings something to the cores, or takes it from there."""
        return not self.has_shared or run.unit == CORE_DMA

    def _through_shared(self, step: SimulatedStep) -> Iterator[Held]:
        """What passes the shared buffer part by part: from the run that brings a part to the one that takes
        it on."""
        if not self.has_shared:
            return
        tiling = step.tiling
        passing = [
            *(("fetch", "weights", w.key or "", p) for w, p in zip(step.weights, tiling.weights, strict=True)
              if p.outer_held_bytes < w.size_bytes),
            *(("load", "load", x.value, p) for x, p in zip(step.loads, tiling.loads, strict=True)),
            *(("store", "store", x.value, p) for x, p in zip(step.stores, tiling.stores, strict=True)),
        ]  # fmt: skip
        known: set[tuple[str, str]] = set()
        for comes, goes, name, passage in passing:
            if not passage.outer_bytes or (comes, name) in known:
                continue
            known.add((comes, name))
            arriving, leaving = (CORE_DMA, DMA) if comes == "store" else (DMA, CORE_DMA)
            own = [r for r in self.runs[step.number] if r.name == name]
            kind = WEIGHTS if comes == "fetch" else TILES
            for first, last in _pairs(
                [r for r in own if r.what == comes and r.unit == arriving],
                [r for r in own if r.what == goes and r.unit == leaving],
            ):
                size_bytes = min(passage.outer_held_bytes, first.size_bytes)
                yield Held(Scope.SHARED, kind, first.start_s, last.end_s, size_bytes)

    def _kept_weights(self) -> Iterator[Held]:
        """Weights that the shared buffer holds as a whole, from when they are brought there until they are
        read for the last time before they are brought again."""
        bringing: dict[str, tuple[UnitRun, int]] = {}
        reading: dict[str, list[UnitRun]] = defaultdict(list)
        for step in self.steps:
            whole = {
                w.key or "": w.size_bytes
                for w, p in zip(step.weights, step.tiling.weights, strict=True)
                if p.outer_bytes and p.outer_held_bytes >= w.size_bytes
            }
            fetches = {r.name: r for r in reversed(self.runs[step.number]) if r.what == "fetch"}
            for name, size_bytes in whole.items():
                if name in fetches:
                    if name in bringing:
                        yield from _kept(*bringing.pop(name), reading.pop(name, []))
                    bringing[name] = (fetches[name], size_bytes)
            for run in self.runs[step.number]:
                if run.what == "weights" and run.name in bringing:
                    reading[run.name].append(run)
        for name, (fetch, size_bytes) in bringing.items():
            yield from _kept(fetch, size_bytes, reading.get(name, []))


def _incoming(step: SimulatedStep) -> Iterator[tuple[str, list[str], Sequence[Passage]]]:
    """Operands that come to the cores: by which runs, their names, how they pass."""
    yield "weights", [weight.key or "" for weight in step.weights], step.tiling.weights
    if step.kind is Kind.INSTANCE:  # what else is put together or copied is written as it arrives
        yield "load", [load.value for load in step.loads], step.tiling.loads


def _by_name(names: Sequence[str], passages: Sequence[Passage]) -> dict[str, list[Passage]]:
    found: dict[str, list[Passage]] = defaultdict(list)
    for name, passage in zip(names, passages, strict=True):
        if passage.held_bytes:
            found[name].append(passage)
    return found


def _kept(fetch: UnitRun, size_bytes: int, reading: Sequence[UnitRun]) -> Iterator[Held]:
    first_s = min((run.start_s for run in reading), default=fetch.end_s)
    last_s = max((run.end_s for run in reading), default=fetch.end_s)
    yield Held(Scope.SHARED, PREFETCHED, fetch.start_s, first_s, size_bytes)
    yield Held(Scope.SHARED, WEIGHTS, first_s, last_s, size_bytes)


def _pairs(arriving: Sequence[UnitRun], leaving: Sequence[UnitRun]) -> Iterator[tuple[UnitRun, UnitRun]]:
    """Each run that brings a part with the one that takes it on: the first of its bytes that follows it."""
    waiting = list(leaving)
    for run in arriving:
        after = (r for r in waiting if r.size_bytes == run.size_bytes and r.start_s >= run.end_s - 1e-12)
        follower = next(after, run)
        if follower is not run:
            waiting.remove(follower)
        yield run, follower


def _curve(changes: Iterable[tuple[float, int]]) -> Curve:
    points: list[tuple[float, int]] = []
    now_bytes = 0
    for at_s, together in groupby(sorted(changes), key=itemgetter(0)):
        now_bytes += sum(size for _, size in together)
        points.append((at_s, now_bytes))
    return tuple(points)
