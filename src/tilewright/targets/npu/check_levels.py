"""Independent check of a finished run: what lies in each level of memory over time, against its capacity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tilewright.hardware.capacity import local_capacity_bytes
from tilewright.hardware.machine import Level
from tilewright.ir.region import full_region
from tilewright.memory.scopes import PlacedBuffer
from tilewright.planning import Violation
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.check_sections import lane_buffers, lane_spaces
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.npu.trace import Trace, by_tile, first_start, last_end
from tilewright.targets.simulated import UnitRun


@dataclass(frozen=True, slots=True)
class Stay:
    """Bytes that lie in a level from `start_s` to `end_s`."""

    what: str
    start_s: float
    end_s: float
    size_bytes: int


def check_levels(trace: Trace) -> Iterator[Violation]:
    """Levels that hold more than they can. Placed buffers have addresses; what passes lies above them."""
    machine = trace.machine
    for scope, level in ((Scope.LOCAL, machine.local), (Scope.SHARED, machine.shared)):
        if level is None:
            continue
        peak = max((b.end_bytes for b in trace.planned.scopes.buffers if b.scope is scope), default=0)
        capacity_bytes = _cluster_bytes(trace, level)
        if capacity_bytes is None:
            continue
        if peak > capacity_bytes:
            yield Violation("capacity", f"{level.name}: buffers end at {peak} of {capacity_bytes} bytes")
        stays = list(passing(trace, scope))
        if scope is Scope.LOCAL and trace.planned.bindings.cores is not None:
            yield from _check_groups(trace, level)
            continue
        if any(step.kernel for step in trace.planned.simulation.steps):
            # Each kernel has places of its own while it runs, and so has each lane in its cores.
            stays += _of_kernels(trace, scope)
            peak = 0
            for space in lane_spaces(trace, level) if scope is Scope.LOCAL else ():
                passing_there = [stay for step in space.steps for stay in _in_cores(trace, step)]
                yield from _check_passing(
                    trace, space.name, passing_there, space.lying_bytes, space.capacity_bytes
                )
        yield from _check_passing(trace, level.name, stays, peak, capacity_bytes)
    yield from _check_main(trace)


def _check_passing(
    trace: Trace, name: str, stays: Sequence[Stay], peak: int, capacity_bytes: int
) -> Iterator[Violation]:
    most_bytes, at_s = most(stays, trace.tolerance_s)
    if most_bytes > capacity_bytes - peak:
        there = [stay for stay in stays if stay.start_s <= at_s < stay.end_s]
        there.sort(key=lambda stay: -stay.size_bytes)
        listed = ", ".join(f"{stay.what} {stay.size_bytes}" for stay in there[:4])
        more = f" and {len(there) - 4} more" if len(there) > 4 else ""
        yield Violation(
            "capacity",
            f"{name}: at {at_s * 1e6:.3f} us {most_bytes} bytes pass beside buffers up to {peak} "
            f"of {capacity_bytes}: {listed}{more}",
        )


def _check_groups(trace: Trace, level: Level) -> Iterator[Violation]:
    """Each group of cores has the buffers of its cores: places between those of its first and its last core,
    and what passes, or is held, beside these."""
    cores, machine = trace.planned.bindings.cores, trace.machine
    assert cores is not None
    assert level.capacity_bytes is not None
    for_buffers = local_capacity_bytes(machine)
    residents = trace.planned.simulation.residents
    stay_bytes = sum(stay.size_bytes for stay in _residents(trace, Scope.LOCAL))
    for group in cores.groups:
        first, behind = group.first_core, group.first_core + group.num_cores
        start = for_buffers // machine.num_cores_per_cluster * first
        end = for_buffers // machine.num_cores_per_cluster * behind
        lying = [b for b in trace.planned.scopes.buffers if b.scope is Scope.LOCAL and b.size_bytes]
        own = [b for b in lying if cores.of_nodes[b.node] == group.number]
        for buffer in own:
            if buffer.offset_bytes < start or buffer.end_bytes > end:
                yield Violation(
                    "capacity",
                    f"{level.name}: {buffer} lies from {buffer.offset_bytes} to {buffer.end_bytes}, cores "
                    f"{first} to {behind - 1} have {start} to {end}",
                )
        steps = [n for n in range(len(trace.planned.scopes.steps)) if trace.group_of(n) == group]
        stays = [stay for number in steps for stay in _in_cores(trace, number)]
        stays += _held(trace, group.number, steps)
        if residents.stay or stay_bytes:
            part_bytes = -(-stay_bytes * group.num_cores // machine.num_cores_per_cluster)
            stays.append(Stay("residents", 0.0, last_end(trace.runs), part_bytes))
        extent = max((b.end_bytes for b in own), default=0) - min((b.offset_bytes for b in own), default=0)
        name = f"{level.name} of cores {first} to {behind - 1}"
        yield from _check_passing(trace, name, stays, extent, level.capacity_bytes * group.num_cores)


def _held(trace: Trace, group: int, steps: Sequence[int]) -> Iterator[Stay]:
    """Weights that a group of cores holds, in every copy that one of its steps needs: from when they come,
    or from the beginning, until they are used for the last time, or to the end."""
    needed: dict[str, int] = {}
    until: dict[str, float] = {}
    held = trace.held()
    stays = trace.planned.simulation.residents.stay
    for number in steps:
        for weight in trace.planned.simulation.steps[number].weights:
            key = weight.key or ""
            if (group, key) in held:
                needed[key] = max(needed.get(key, 0), weight.size_bytes * weight.num_copies)
                until[key] = max(until.get(key, 0.0), last_end(trace.work(number)))
    for key, size_bytes in needed.items():
        brought = held[group, key]
        start_s = 0.0 if brought is None else first_start(trace.of(brought, "weights", name=key))
        yield Stay(
            f"{key}, which is held,", start_s, last_end(trace.runs) if stays else until[key], size_bytes
        )


def _check_main(trace: Trace) -> Iterator[Violation]:
    level, graph = trace.machine.outermost, trace.planned.instances
    capacity_bytes = _cluster_bytes(trace, level)
    if capacity_bytes is None:
        return
    network = graph.partition.graph
    constants = (v for n in network.nodes for v in n.operands() if v.is_constant)
    lying = dict.fromkeys((*network.inputs, *constants))
    lying_bytes = sum(graph.bytes_of(v, full_region(v.shape)) for v in lying)
    peak = max((b.end_bytes for b in trace.planned.scopes.buffers if b.scope is Scope.MAIN), default=0)
    if lying_bytes + peak > capacity_bytes:
        yield Violation(
            "capacity",
            f"{level.name}: inputs and constants of {lying_bytes} bytes and buffers up to {peak} in "
            f"{capacity_bytes} bytes",
        )


def _cluster_bytes(trace: Trace, level: Level) -> int | None:
    """What a level holds for one cluster, its equal part where clusters share it; None without a limit."""
    if level.capacity_bytes is None:
        return None
    return int(level.capacity_bytes * trace.machine.num_instances_per_cluster(level))


def most(stays: Iterable[Stay], tolerance_s: float = 0.0) -> tuple[int, float]:
    """The most bytes that lie somewhere at a time, and when that is.

    >>> most([Stay("a", 0.0, 2.0, 5), Stay("b", 1.0, 3.0, 4), Stay("c", 2.0, 4.0, 1)])
    (9, 1.0)
    """
    changes = []
    for stay in stays:
        if stay.end_s - stay.start_s > tolerance_s:
            changes += [(stay.start_s, stay.size_bytes), (stay.end_s - tolerance_s, -stay.size_bytes)]
    there = most_bytes = 0
    at_s = 0.0
    for time_s, size_bytes in sorted(changes):
        there += size_bytes
        if there > most_bytes:
            most_bytes, at_s = there, time_s
    return most_bytes, at_s


def _of_kernels(trace: Trace, scope: Scope) -> Iterator[Stay]:
    """What placed buffers of kernels that are launched separately take, from the first run to the last; those
    of lanes in their cores while these run."""
    runs: dict[int, list[UnitRun]] = {}
    places: dict[int, list[PlacedBuffer]] = {}
    kernels = [step.kernel.number if step.kernel else 0 for step in trace.planned.simulation.steps]
    for run in trace.runs:
        runs.setdefault(kernels[run.step], []).append(run)
    for buffer in trace.planned.scopes.buffers:
        is_of_lane = scope is Scope.LOCAL and trace.sections[buffer.first_step] is not None
        if buffer.scope is scope and buffer.size_bytes and not is_of_lane:
            places.setdefault(kernels[buffer.first_step], []).append(buffer)
    for number, buffers in places.items():
        extent = max(b.end_bytes for b in buffers) - min(b.offset_bytes for b in buffers)
        ran = runs.get(number, [])
        yield Stay(f"buffers of kernel {number}", min(first_start(ran), last_end(ran)), last_end(ran), extent)
    if scope is Scope.LOCAL:
        yield from (Stay(str(b), start, end, b.size_bytes) for b, start, end in lane_buffers(trace))


def passing(trace: Trace, scope: Scope) -> Iterator[Stay]:
    """What is in the cores' buffers, or the shared one, on its way: weights, operands, results."""
    for number in range(len(trace.planned.scopes.steps)):
        if scope is Scope.LOCAL:
            yield from _in_cores(trace, number)
        else:
            yield from _through_shared(trace, number)
    if scope is Scope.SHARED:
        yield from _weights_in_shared(trace)
    yield from _residents(trace, scope)


def _residents(trace: Trace, scope: Scope) -> Iterator[Stay]:
    """Weights that stay from batch to batch."""
    found = trace.planned.simulation
    sizes = {weight.key: weight.size_bytes for step in found.steps for weight in step.weights}
    end_s = last_end(trace.runs)
    for key, where in found.residents.scopes.items():
        if where is scope:
            yield Stay(f"{key}, which stays,", 0.0, end_s, sizes[key])


def _in_cores(trace: Trace, number: int) -> Iterator[Stay]:
    """From when it begins to come until the tile has been computed that needs it; a result from when it
    begins to be computed until it is away."""
    step = trace.planned.simulation.steps[number]
    tiling, work = step.tiling, by_tile(trace.work(number))
    done = last_end(chain.from_iterable(work.values()))
    if tiling.inside_bytes:
        start = first_start(chain.from_iterable(work.values()))
        stored = [run for store in step.stores for run in trace.of(number, "store", name=store.value)]
        end = max(done, last_end(stored)) if tiling.stores_last else done
        yield Stay(f"values between operators of step {number}", start, end, tiling.inside_bytes)
    coming = [
        (w.key or "", trace.of(number, "weights", name=w.key or ""), p)
        for w, p in zip(step.weights, tiling.weights, strict=True)
    ]
    if step.kind is Kind.INSTANCE:  # else operands are written where the result lies
        coming += [
            (x.value, trace.of(number, "load", trace.core_engine, x.value, part), p)
            for part, (x, p) in enumerate(zip(step.loads, tiling.loads, strict=True))
            if x.scope is not Scope.LOCAL
        ]
    for name, arrivals, passage in coming:
        for tile, runs in by_tile(arrivals).items():
            end = done if tile < 0 or passage.is_kept else last_end(work.get(tile, runs))
            label = f"{name or 'rows of a table'} of step {number}, tile {tile}"
            yield Stay(label, first_start(runs), end, passage.held_bytes)
    for store, passage in zip(step.stores, tiling.stores, strict=True):
        for tile, runs in by_tile(trace.of(number, "store", trace.core_engine, store.value)).items():
            start = min(first_start(work.get(tile, ())), first_start(runs))
            label = f"{store.value} from step {number}, tile {tile}"
            yield Stay(label, start, last_end(runs), passage.held_bytes)


def _through_shared(trace: Trace, number: int) -> Iterator[Stay]:
    """What passes between main memory and the cores: until the engine behind has taken it away."""
    step = trace.planned.simulation.steps[number]
    moving = [
        (load.value, "load", DMA, CORE_DMA, part, passage.outer_held_bytes)
        for part, (load, passage) in enumerate(zip(step.loads, step.tiling.loads, strict=True))
        if load.scope is Scope.MAIN
    ]
    moving += [
        (store.value, "store", CORE_DMA, DMA, 0, passage.outer_held_bytes)
        for store, passage in zip(step.stores, step.tiling.stores, strict=True)
        if store.scope is Scope.MAIN
    ]
    for name, what, arriving, leaving, part, held_bytes in moving:
        arrivals = trace.of(number, what, arriving, name, part)
        going = trace.of(number, what, leaving, name, part)
        if _bytes(going) > _bytes(arrivals):
            yield from _in_turn(f"{name} of step {number}", arrivals, going, held_bytes, False)
            continue
        for tile, runs in by_tile(arrivals).items():
            label = f"{name} of step {number}, tile {tile}"
            behind = [run for run in going if tile in (-1, run.tile)]
            yield from _in_turn(label, runs, behind, held_bytes, True, is_sum=what == "store")


def _in_turn(
    what: str,
    coming: Sequence[UnitRun],
    going: Sequence[UnitRun],
    held_bytes: int,
    is_once: bool,
    is_sum: bool = False,
) -> Iterator[Stay]:
    """Parts that leave in the order in which they came; of one that stands for several what is held at a
    time. What does not leave only once is read by turns: as much as is held, as often as all of it is, then
    what comes next. Of a sum, which is written there as often as it grows, the same share has left."""
    come_bytes = gone_bytes = place = 0
    all_come, all_gone = _bytes(coming), _bytes(going)
    for run in coming:
        come_bytes += run.size_bytes
        until = come_bytes
        if is_sum and all_gone < all_come:
            until = come_bytes * all_gone // all_come
        elif not is_once:
            block_bytes = held_bytes if run.size_bytes < held_bytes else 1
            until = all_gone * min(all_come, -(-come_bytes // block_bytes) * block_bytes) // max(1, all_come)
        while place < len(going) and gone_bytes < until:
            gone_bytes += going[place].size_bytes
            place += 1
        last_s = going[place - 1].end_s if place else last_end(going)
        yield Stay(what, run.start_s, max(run.end_s, last_s), min(held_bytes, run.size_bytes))


def _weights_in_shared(trace: Trace) -> Iterator[Stay]:
    """From when a weight is fetched until it is read for the last time before it is fetched again."""
    num_steps = len(trace.planned.simulation.steps)
    source: dict[str, int] = {}  # the step that fetched a weight last
    readers: dict[tuple[str, int], list[int]] = {}  # of what a step fetched
    held: dict[tuple[str, int], int] = {}
    for number in range(num_steps):
        step = trace.planned.simulation.steps[number]
        for weight, passage in zip(step.weights, step.tiling.weights, strict=True):
            key = weight.key or ""
            if weight.key is None or trace.of(number, "fetch", name=key):
                source[key] = number
                held[key, number] = passage.outer_held_bytes
            if key in source:
                readers.setdefault((key, source[key]), []).append(number)
    for (key, number), steps in readers.items():
        coming = trace.of(number, "fetch", name=key)
        going = sorted(
            chain.from_iterable(trace.of(step, "weights", name=key) for step in dict.fromkeys(steps)),
            key=lambda run: run.start_s,
        )
        label = f"{key or 'rows of a table'} from step {number} on"
        is_once = _bytes(going) <= _bytes(coming)
        yield from _in_turn(label, coming, going, held[key, number], is_once)


def _bytes(runs: Iterable[UnitRun]) -> int:
    return sum(run.size_bytes for run in runs)
