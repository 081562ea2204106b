"""A simulated plan in the words of `targets/simulated.py`: for people, and for code generators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter

from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Value
from tilewright.memory.instances import is_result
from tilewright.memory.scopes import PlacedBuffer
from tilewright.schedule.binding import Scope
from tilewright.schedule.core_groups import CoreGroup
from tilewright.schedule.lanes import LanePlace
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.simulated_step import Load, SimulatedStep, Weight
from tilewright.targets.npu.tiles import Passage, Tiling
from tilewright.targets.simulated import (
    NetworkPlan,
    PlannedBuffer,
    PlannedCores,
    PlannedInstance,
    PlannedLevel,
    PlannedPassage,
    PlannedRead,
    PlannedStep,
    PlannedTiles,
    PlannedValue,
    PlannedWeight,
    SimulatedSubgraph,
    UnitRun,
)

_TITLES = {Scope.LOCAL: "buffers of the cores", Scope.SHARED: "shared buffer", Scope.MAIN: "main memory"}
_WEIGHTS = frozenset({"fetch", "weights"})


def subgraphs_of(planned: SimulatedPlan) -> tuple[SimulatedSubgraph, ...]:
    """The subgraphs of a plan, how they are cut, and how the first slice of each is bound to cores."""
    nodes = planned.instances.nodes
    first = {n.subgraph_id: n.id for n in reversed(nodes) if n.kind == "instance"}
    return tuple(
        SimulatedSubgraph(
            nodes=tuple(node.name for node in subgraph.nodes),
            split_dim=split.cuts[0][0] if split.cuts else None,
            factor=split.num_instances,
            cuts=split.cuts,
            keeps_rows=split.chain_length > 1,
            output_shapes=tuple(v.shape for v in subgraph.outputs),
            instance_shapes=tuple(
                tuple(stop - start for start, stop in region)
                for region in nodes[first[subgraph.id]].outputs.values()
            ),
            binding=_binding(planned, first[subgraph.id]),
        )
        for subgraph, split in zip(planned.partition.subgraphs, planned.instances.splits, strict=True)
    )


def _binding(planned: SimulatedPlan, node: int) -> tuple[int, ...]:
    """How what a node makes is distributed over cores: a kernel's last step says it of what it leaves."""
    last = planned.simulation.steps[planned.scopes.steps_of(node)[-1]]
    return last.binding or planned.bindings.bindings[node]


def plan_of(planned: SimulatedPlan, machine: Machine) -> NetworkPlan:
    """Everything of a plan, with its times. O(steps + reads + runs)."""
    graph, scopes, simulated = planned.partition.graph, planned.scopes, planned.simulation
    times = _step_times(planned, machine.shared is not None)
    end_s = max((t.end_s for t in times), default=0.0)
    readers: list[list[int]] = [[] for _ in scopes.buffers]
    for number, step in enumerate(scopes.steps):
        for read in step.reads:
            if read.buffer is not None:
                readers[read.buffer].append(number)
    return NetworkPlan(
        inputs=_whole(graph.inputs),
        results=_whole(graph.outputs),
        levels=_levels(planned, machine),
        buffers=tuple(
            _buffer(planned, buffer, times, readers[buffer.id], end_s) for buffer in scopes.buffers
        ),
        instances=tuple(
            PlannedInstance(
                node.id,
                str(node.kind),
                node.subgraph_id,
                node.index,
                {value.name: region for value, region in node.outputs.items()},
                _binding(planned, node.id),
            )
            for node in planned.instances.nodes
        ),
        steps=tuple(_step(planned, step, times[step.number]) for step in simulated.steps),
    )


def _whole(values: Iterable[Value]) -> tuple[PlannedValue, ...]:
    return tuple(PlannedValue(v.name, str(v.dtype), v.shape) for v in values)


def _levels(planned: SimulatedPlan, machine: Machine) -> tuple[PlannedLevel, ...]:
    levels = {Scope.LOCAL: machine.local, Scope.SHARED: machine.shared, Scope.MAIN: machine.outermost}
    described = []
    for scope, use in planned.scopes.levels.items():
        level = levels[scope]
        if level is None:
            continue
        per_cluster = machine.num_instances_per_cluster(level)
        whole = None if level.capacity_bytes is None else int(level.capacity_bytes * per_cluster)
        described.append(
            PlannedLevel(
                str(scope), _TITLES[scope], whole, use.level.capacity_bytes, use.peak_bytes, use.num_buffers
            )
        )
    return tuple(described)


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """When the first run of a step starts, and the first for each weight; from when to when its results are
    made in the cores; when they are where they belong, and everything has ended."""

    fetch_s: float
    fetches_s: Mapping[str, float]
    start_s: float
    computed_s: float
    stored_s: float
    end_s: float


def _buffer(
    planned: SimulatedPlan,
    buffer: PlacedBuffer,
    times: Sequence[_StepTimes],
    readers: Sequence[int],
    end_s: float,
) -> PlannedBuffer:
    graph = planned.instances
    in_results = is_result(graph, graph.nodes[buffer.node], buffer.value)
    making = times[buffer.first_step]
    made_s = making.computed_s if buffer.scope is Scope.LOCAL else making.stored_s
    return PlannedBuffer(
        number=buffer.id,
        value=buffer.value.name,
        dtype=str(buffer.value.dtype),
        region=buffer.region,
        size_bytes=buffer.size_bytes,
        level=str(buffer.scope),
        offset_bytes=buffer.offset_bytes,
        first_step=buffer.first_step,
        last_step=buffer.last_step,
        start_s=making.start_s,
        made_s=made_s,
        end_s=end_s if in_results else max([made_s, *(times[number].end_s for number in readers)]),
        in_place_of=buffer.in_place_of,
        is_result=in_results,
        is_spilled=buffer.is_spilled,
    )


def _step(planned: SimulatedPlan, step: SimulatedStep, times: _StepTimes) -> PlannedStep:
    placed, residents = planned.scopes.steps[step.number], planned.simulation.residents
    cores = planned.bindings.cores
    group: CoreGroup | LanePlace | None = planned.bindings.lane_of(placed.node, placed.layer)
    if cores is not None:
        group = cores.of(placed.node)
    return PlannedStep(
        number=step.number,
        name=step.name,
        instance=placed.node,
        cores=None if group is None else PlannedCores(group.first_core, group.num_cores),
        operators=tuple(operator.name for operator in placed.operators),
        reads=tuple(
            PlannedRead(read.value.name, read.region, read.buffer, _awaited(load, planned))
            for read, load in zip(placed.reads, step.loads, strict=True)
        ),
        writes=placed.writes,
        weights=tuple(
            PlannedWeight(
                w.name,
                w.region,
                w.size_bytes,
                times.fetches_s.get(w.key or ""),
                _home(w, step, residents),
            )
            for w in step.weights
        ),
        tiles=_tiles(step.tiling),
        after=step.after,
        fetch_s=times.fetch_s,
        start_s=times.start_s,
        end_s=times.end_s,
    )


def _home(weight: Weight, step: SimulatedStep, residents: Residents) -> str | None:
    """The level where a weight stays from batch to batch."""
    if residents.stay and step.holds(weight):
        return str(Scope.LOCAL)
    scope = None if weight.key is None else residents.scopes.get(weight.key)
    return None if scope is None else str(scope)


def _awaited(load: Load, planned: SimulatedPlan) -> tuple[int, ...]:
    """Up to which tile of its producer each tile waits; nothing where each waits for all of them."""
    if load.producer is None:
        return ()
    last = planned.simulation.steps[load.producer].tiling.num_tiles - 1
    return () if all(tile >= last for tile in load.tiles) else tuple(min(tile, last) for tile in load.tiles)


def _tiles(tiling: Tiling) -> PlannedTiles:
    def told(passages: Sequence[Passage]) -> tuple[PlannedPassage | None, ...]:
        return tuple(PlannedPassage(**asdict(p)) if p.moved_bytes else None for p in passages)

    return PlannedTiles(
        tiling.axis,
        tiling.num_tiles,
        tiling.loops,
        told(tiling.weights),
        told(tiling.loads),
        told(tiling.stores),
    )


def _step_times(planned: SimulatedPlan, has_shared: bool) -> list[_StepTimes]:
    """The times of all steps; one without runs is there as soon as what it waits for."""
    runs: list[list[UnitRun]] = [[] for _ in planned.scopes.steps]
    for run in sorted(planned.simulation.runs, key=attrgetter("start_s")):
        runs[run.step].append(run)
    times: list[_StepTimes] = []
    for step, own in zip(planned.simulation.steps, runs, strict=True):
        data = [r for r in own if r.what not in _WEIGHTS]
        # What passes the shared buffer on its way to the cores is not yet where it is made.
        arriving = [r for r in data if r.unit == CORE_DMA or not has_shared]
        making = [r for r in data if r.what == "compute"] or arriving or data
        if making:
            start_s, computed_s = making[0].start_s, max(r.end_s for r in making)
        else:
            start_s, computed_s = _waits(planned, step, times)
        times.append(
            _StepTimes(
                fetch_s=own[0].start_s if own else start_s,
                fetches_s={r.name: r.start_s for r in reversed(own) if r.what in _WEIGHTS},
                start_s=start_s,
                computed_s=computed_s,
                stored_s=max((r.end_s for r in data), default=computed_s),
                end_s=max((r.end_s for r in own), default=computed_s),
            )
        )
    return times


def _waits(planned: SimulatedPlan, step: SimulatedStep, times: Sequence[_StepTimes]) -> tuple[float, float]:
    """When a step that takes no time has the first and the last of what it waits for."""
    first = last = max((times[number].end_s for number in step.after), default=0.0)
    for load in step.loads:
        if load.producer is not None:
            made = times[load.producer]
            made_s = made.computed_s if load.scope is Scope.LOCAL else made.stored_s
            first, last = max(first, made.start_s if _awaited(load, planned) else made_s), max(last, made_s)
    return first, last
