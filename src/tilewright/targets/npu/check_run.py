"""Independent check of a finished run of an accelerator: its units, rates and bytes, its memory, its order.

Reads the plan, what the machine's description says, and the runs; shares no code with what made the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf, prod

from tilewright.hardware.machine import Level, Machine, Unit
from tilewright.ir.derive import macs, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import value_regions
from tilewright.ir.nest import Indirect
from tilewright.ir.region import Region, hull, volume
from tilewright.memory.instances import InstanceStep
from tilewright.planning import Violation
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.check_energies import check_energies
from tilewright.targets.npu.check_levels import check_levels
from tilewright.targets.npu.check_order import check_order
from tilewright.targets.npu.check_sections import check_sections
from tilewright.targets.npu.check_tilings import check_tilings
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.npu.trace import Trace, last_end
from tilewright.targets.simulated import UnitRun

_CLOSE = 1e-9
"""By what share sums of times may differ from what they should be."""

_IN, _OUT = ("main_read", "shared_written"), ("shared_read", "main_written")
_COUNTED: Mapping[str, Mapping[str, Sequence[str]]] = {
    DMA: {"fetch": _IN, "load": _IN, "store": _OUT},
    CORE_DMA: {
        "weights": ("shared_read",),
        "load": ("shared_read",),
        "store": ("shared_written",),
        "move": ("between_cores",),
    },
}
_COUNTED_WITHOUT_SHARED: Mapping[str, Mapping[str, Sequence[str]]] = {
    DMA: {"weights": ("main_read",), "load": ("main_read",), "store": ("main_written",)},
    CORE_DMA: {"move": ("between_cores",)},
}
"""What runs count as, by what does them: at which levels of memory, which way."""


def check_run(planned: SimulatedPlan, machine: Machine) -> tuple[Violation, ...]:
    """Everything wrong with the runs of a plan: nothing, if the machine could have run it so.

    Checked: no unit does two things at once; lanes of a kernel have no more than its cores, which are theirs
    from the beginning of their section to its end; nothing moves faster than its port, nothing is computed
    faster than the units multiply; whatever a step reads, writes and multiplies by moves, and totals are
    those of the runs; energies are those of what moves and is computed; no level ever holds more than its
    capacity, with weights and tiles on their way; nothing is read before it is there, nothing written where
    something is still needed; layers that are tiled jointly move, compute and hold what their steps need.
    """
    trace = Trace(planned, machine)
    return (
        *_check_units(trace),
        *check_sections(trace),
        *_check_rates(trace),
        *_check_steps(trace),
        *_check_totals(trace),
        *check_energies(trace),
        *check_levels(trace),
        *check_order(trace),
        *check_tilings(trace),
    )


def _check_units(trace: Trace) -> Iterator[Violation]:
    """Kernels that hold some of the cores, lanes of these, and groups of cores have units of their own, all
    together those of all cores."""
    num_cores = trace.machine.num_cores_per_cluster
    lanes: dict[tuple[str, object], list[UnitRun]] = {}
    cores: dict[str, list[tuple[float, int]]] = {}
    for run in trace.runs:
        kernel, group = trace.planned.simulation.steps[run.step].kernel, trace.group_of(run.step)
        place, given = trace.sections[run.step], trace.cores_of(run.step)
        lane = None if not run.num_cores else group.number if group else kernel.number if kernel else None
        lanes.setdefault(
            (run.unit, lane if place is None or lane is None else (lane, *place[1:])), []
        ).append(run)
        if given is not None and run.unit != DMA and run.num_cores != given:
            yield Violation(
                "unit", f"{run.unit}: step {run.step} runs on {run.num_cores} of its {given} cores"
            )
        changes = cores.setdefault(run.unit, [])
        changes.append((run.start_s, run.num_cores or num_cores))
        changes.append((run.end_s - trace.tolerance_s, -(run.num_cores or num_cores)))
        if not 0 <= run.start_s < run.end_s:
            yield Violation("unit", f"{run.unit}: {run} ends before it starts")
    for (unit, _), runs in lanes.items():
        for earlier, later in pairwise(runs):
            if later.start_s < earlier.end_s - trace.tolerance_s:
                yield Violation(
                    "unit",
                    f"{unit}: {later.what} of step {later.step} starts at {later.start_s * 1e6:.3f} us, "
                    f"during {earlier.what} of step {earlier.step} until {earlier.end_s * 1e6:.3f} us",
                )
    for unit, changes in cores.items():
        most = max(accumulate(change for _, change in sorted(changes)))
        if most > num_cores:
            yield Violation("unit", f"{unit}: runs on {most} of {num_cores} cores")


def _check_rates(trace: Trace) -> Iterator[Violation]:
    rates = _rates(trace.machine)
    for run in trace.runs:
        share = run.num_cores / trace.machine.num_cores_per_cluster if run.num_cores else 1.0
        least_s = 0.0
        if run.size_bytes:  # which units that compute never move
            least_s = run.size_bytes / (rates[run.unit] * share) if run.unit in rates else inf
        if (run.end_s - run.start_s) * (1 + _CLOSE) + trace.tolerance_s < least_s:
            yield Violation(
                "rate",
                f"{run.unit}: {run.size_bytes} bytes of {run.what} of step {run.step} take "
                f"{least_s * 1e6:.3f} us, not {(run.end_s - run.start_s) * 1e6:.3f}",
            )


def _rates(machine: Machine) -> Mapping[str, float]:
    """Bytes per second of what moves data: as fast as the levels that it serves and its engines."""
    local, shared, main = machine.local, machine.shared, machine.outermost
    if local is None:
        return {}
    if shared is None:
        inner = _level_rate(machine, local)
        return {
            DMA: min(inner, _level_rate(machine, main), _engine_rate(machine, local, main)),
            CORE_DMA: inner,
        }
    levels = min(_level_rate(machine, local), _level_rate(machine, shared))
    return {
        DMA: min(_level_rate(machine, main), _engine_rate(machine, shared, main)),
        CORE_DMA: min(levels, _engine_rate(machine, local, shared)),
    }


def _level_rate(machine: Machine, level: Level) -> float:
    ways = (machine.read_bytes_per_s(level), machine.write_bytes_per_s(level))
    slower = min((rate for rate in ways if rate is not None), default=inf)
    return slower * float(machine.num_instances_per_cluster(level))


def _engine_rate(machine: Machine, inner: Level, outer: Level) -> float:
    ends = {inner.name, outer.name}
    engines = [u for u in machine.units if u.between is not None and set(u.between) == ends]
    rates = [(machine.dma_bytes_per_s(u), machine.num_units(u) / machine.num_clusters) for u in engines]
    return sum(rate * count for rate, count in rates if rate is not None) or inf


def _check_steps(trace: Trace) -> Iterator[Violation]:
    """What each step has to move and to multiply, as the plan has it, and what its runs do."""
    products_per_s = _products_per_s(trace.machine)
    held = trace.held()
    for number, step in enumerate(trace.planned.scopes.steps):
        for what, least_bytes, runs in _moves(trace, number, step, held):
            moved_bytes = sum(run.size_bytes for run in runs)
            if moved_bytes < least_bytes:
                yield Violation(
                    "bytes", f"step {number}: {moved_bytes} bytes of {what} move instead of {least_bytes}"
                )
        computing = trace.of(number, "compute")
        num_products = _products(trace, step)
        least_s = num_products / (products_per_s * trace.share_of(number)) if num_products else 0.0
        spent_s = sum(run.end_s - run.start_s for run in computing)
        if spent_s * (1 + _CLOSE) + trace.tolerance_s < least_s:
            yield Violation(
                "rate",
                f"step {number}: {num_products:.0f} products take {least_s * 1e6:.3f} us, not "
                f"{spent_s * 1e6:.3f}",
            )
        planned_s: dict[str, float] = {}
        for work in trace.planned.simulation.steps[number].works:
            planned_s[work.unit] = planned_s.get(work.unit, 0.0) + work.seconds
        for unit, seconds in planned_s.items():
            ran_s = sum(run.end_s - run.start_s for run in computing if run.unit == unit)
            if ran_s * (1 + _CLOSE) + trace.tolerance_s < seconds:
                yield Violation(
                    "rate", f"step {number}: {unit} works {seconds * 1e6:.3f} us, not {ran_s * 1e6:.3f}"
                )


def _moves(
    trace: Trace, number: int, step: InstanceStep, held: Mapping[tuple[int, str], int | None]
) -> Iterator[tuple[str, int, list[UnitRun]]]:
    """What a step has to move: what that is, at least how many bytes, and the runs that do it."""
    graph, buffers = trace.planned.instances, trace.planned.scopes.buffers
    least: Counter[tuple[str, str, str]] = Counter()
    for read in step.reads:
        scope = Scope.MAIN if read.buffer is None else buffers[read.buffer].scope
        bytes_of = graph.main_bytes_of if read.buffer is None else graph.bytes_of
        size_bytes = bytes_of(read.value, read.region)
        if scope is not Scope.LOCAL:
            least["load", trace.core_engine, read.value.name] += size_bytes
        elif not step.operators:
            least["move", CORE_DMA, read.value.name] += size_bytes
        if scope is Scope.MAIN and trace.core_engine != DMA:
            least["load", DMA, read.value.name] += size_bytes
    for buffer in (buffers[i] for i in step.writes):
        if buffer.scope is not Scope.LOCAL:
            least["store", trace.core_engine, buffer.value.name] += buffer.size_bytes
        if buffer.scope is Scope.MAIN and trace.core_engine != DMA:
            least["store", DMA, buffer.value.name] += buffer.size_bytes
    for (what, unit, name), least_bytes in least.items():
        yield f"{what} of {name} on {unit}", least_bytes, trace.of(number, what, unit, name)
    group, there_bytes = trace.group_of(number), 0
    for weight in trace.planned.simulation.steps[number].weights if group is not None else ():
        assert group is not None
        place = group.number, weight.key or ""
        if place not in held:
            continue
        brought = held[place]
        if brought == number:
            yield f"weight {weight.key}", weight.size_bytes, trace.of(number, "weights", name=weight.key)
        else:
            there_bytes += weight.size_bytes  # which the step that brought it moved
    yield "weights", max(0, _weight_bytes(trace, step) - there_bytes), trace.of(number, "weights")


def _weight_bytes(trace: Trace, step: InstanceStep) -> int:
    """Bytes of the parts of constants that a step reads; of tables nothing, whose rows data choose."""
    graph = trace.planned.instances
    needed: dict[Value, Region] = {}
    for node, regions in _made(trace, step):
        for output, region in regions.items():
            for position, need in enumerate(graph.maps.inputs_of(node, output, region)):
                operand = node.inputs[position]
                if operand is None or need is None or not operand.is_constant or operand.num_elements <= 1:
                    continue
                if _is_read_in_order(node, position):
                    needed[operand] = hull(needed[operand], need) if operand in needed else need
    return sum(graph.bytes_of(operand, region) for operand, region in needed.items())


def _is_read_in_order(node: Node, position: int) -> bool:
    """Whether a node reads elements of an operand that follow from those of the result."""
    reads = [a for nest in nests_of(node) for a in nest.reads if a.operand.key == ("input", position)]
    return bool(reads) and not any(isinstance(index, Indirect) for a in reads for index in a.index)


def _products(trace: Trace, step: InstanceStep) -> float:
    num_products = 0.0
    for node, regions in _made(trace, step):
        # Of several results the one of which most is made says how much of the work is done.
        shares = [
            volume(region) / value.num_elements
            for output, region in regions.items()
            if (value := node.outputs[output]) is not None
        ]
        num_products += node.remembered(macs) * max(shares)
    return num_products


def _made(trace: Trace, step: InstanceStep) -> Iterator[tuple[Node, Mapping[int, Region]]]:
    """The operators of a step that make something, and which region of which result."""
    buffers = [trace.planned.scopes.buffers[i] for i in step.writes]
    regions = value_regions(
        step.operators, {b.value: b.region for b in buffers}, trace.planned.instances.maps
    )
    for node in step.operators:
        touched = {i: regions[v] for i, v in enumerate(node.outputs) if v is not None and v in regions}
        made = {i: region for i, region in touched.items() if volume(region)}
        if made:
            yield node, made


def _products_per_s(machine: Machine) -> float:
    """The most that any sort of unit of a cluster multiplies."""
    rates = (
        max(u.macs_per_cycle.values()) * machine.num_units(u) / _left(machine, u)
        for u in machine.units
        if u.macs_per_cycle
    )
    return max(rates, default=0.0) * (machine.clock_hz or 0.0) / machine.num_clusters or inf


def _left(machine: Machine, unit: Unit) -> float:
    """The share of products without those that a unit skips."""
    return prod(machine.densities.get(kind, 1.0) for kind, way in unit.zeros.items() if way == "skip")


def _check_totals(trace: Trace) -> Iterator[Violation]:
    """Times and bytes of the whole run are those of its parts."""
    found = trace.planned.simulation
    counted = _COUNTED if trace.machine.shared is not None else _COUNTED_WITHOUT_SHARED
    moved: Counter[str] = Counter()
    busy_s: dict[str, float] = {}
    for run in trace.runs:
        share = run.num_cores / trace.machine.num_cores_per_cluster if run.num_cores else 1.0
        busy_s[run.unit] = busy_s.get(run.unit, 0.0) + (run.end_s - run.start_s) * share
        if run.what == "weights" and found.residents.scopes.get(run.name) is Scope.LOCAL:
            moved["between_cores"] += run.size_bytes
            continue
        for name in counted.get(run.unit, {}).get(run.what, ()):
            moved[name] += run.size_bytes
    for name in ("main_read", "main_written", "shared_read", "shared_written", "between_cores"):
        if getattr(found.traffic, name) != moved[name]:
            yield Violation("bytes", f"{name}: {getattr(found.traffic, name)} stated, {moved[name]} moved")
    for unit in sorted({*busy_s, *found.busy_s}):
        stated_s, ran_s = found.busy_s.get(unit, 0.0), busy_s.get(unit, 0.0)
        if abs(stated_s - ran_s) > _CLOSE * ran_s + trace.tolerance_s:
            yield Violation("time", f"{unit} is busy for {stated_s} s as stated, {ran_s} s as it ran")
    end_s = last_end(trace.runs)
    if found.time_s < end_s:
        yield Violation("time", f"{found.time_s} s stated, but the last run ends after {end_s} s")
    if found.time_s < found.lower_bound_s * (1 - _CLOSE):
        yield Violation("bound", f"{found.time_s} s are below the bound of {found.lower_bound_s} s")
