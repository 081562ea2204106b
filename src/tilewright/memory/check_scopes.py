"""Independent check of a scope plan: regions, live ranges and what overlaps are worked out anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region, hull, input_regions, volume
from tilewright.memory.check import check_memory
from tilewright.memory.instances import InstanceStep
from tilewright.memory.scopes import PlacedBuffer, ScopePlan
from tilewright.planning import Violation
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.instances import InstanceNode, Kind

_FROM_INSIDE = {Scope.LOCAL: 0, Scope.SHARED: 1, Scope.MAIN: 2}


def check_scopes(plan: ScopePlan, bindings: Bindings) -> tuple[Violation, ...]:
    """Everything wrong with a plan: nothing, if it is valid.

    Checked: the steps are the layers that each node needs, in the order that was asked for, and read and
    write the regions that they must; no buffer is read before it is made or after it is given up; results of
    the network lie in main memory until the end, the rest is asked for in the scope that it was bound to;
    nothing is written in place of what is still needed; kernels that run at the same time share no place.
    The rest is the check of any memory plan.
    """
    return (
        *_check_steps(plan),
        *_check_reads(plan),
        *_check_lives(plan),
        *_check_homes(plan, bindings),
        *_check_company(plan, bindings),
        *_check_reuse(plan),
        *check_memory(plan.timeline.problem, plan.memory),
    )


def _check_steps(plan: ScopePlan) -> Iterator[Violation]:
    expected = [(place, layer) for place in plan.order for layer in _needed_layers(plan, place)]
    found = [(s.node, s.layer) for s in plan.steps]
    if found != expected:
        yield Violation("steps", f"{len(found)} steps, not the {len(expected)} that the order asks for")
    written = sorted(p for s in plan.steps for p in s.writes)
    if written != list(range(len(plan.buffers))):
        yield Violation("written", "not every buffer is written by one step")


def _needed_layers(plan: ScopePlan, place: int) -> list[int]:
    node = plan.graph.nodes[place]
    if node.kind is not Kind.INSTANCE:
        return [0]
    touched = _touched(plan, node)
    return [
        number
        for number, layer in enumerate(_layers(plan, node))
        if any(v in touched for v in _escaping(plan, layer))
    ]


def _layers(plan: ScopePlan, node: InstanceNode) -> Sequence[Sequence[Node]]:
    partition = plan.graph.partition
    return [layer.nodes for layer in partition.layers_of(partition.subgraphs[node.subgraph_id])]


def _touched(plan: ScopePlan, node: InstanceNode) -> dict[Value, Region]:
    """Regions of all values that an instance reads or makes."""
    return _needs(plan.graph.partition.subgraphs[node.subgraph_id].nodes, node.outputs)


def _needs(operators: Sequence[Node], wanted: Mapping[Value, Region]) -> dict[Value, Region]:
    regions = dict(wanted)
    for operator in reversed(operators):
        for position, value in enumerate(operator.outputs):
            if value is None or value not in regions:
                continue
            needs = input_regions(operator, regions[value], position)
            for operand, need in zip(operator.inputs, needs, strict=True):
                if operand is not None and need is not None and not operand.is_constant:
                    regions[operand] = hull(regions[operand], need) if operand in regions else need
            for captured in operator.captures:
                if not captured.is_constant:
                    regions[captured] = tuple((0, extent) for extent in captured.shape)
    return regions


def _escaping(plan: ScopePlan, layer: Sequence[Node]) -> list[Value]:
    """What a layer makes for others; of one that nobody reads, the results of its last operator."""
    made = [v for n in layer for v in n.results()]
    found = [v for v in made if v in plan.graph.results or any(u not in layer for u in v.users)]
    return found or list(layer[-1].results())


def _check_reads(plan: ScopePlan) -> Iterator[Violation]:
    sources = {(e.consumer, e.value, e.region): e.producer for e in plan.graph.edges}
    inputs = set(plan.graph.partition.graph.inputs)
    current = -1
    touched: dict[Value, Region] = {}
    own: set[Value] = set()
    for number, step in enumerate(plan.steps):
        node = plan.graph.nodes[step.node]
        is_instance = node.kind is Kind.INSTANCE
        if step.node != current:
            current = step.node
            touched = _touched(plan, node) if is_instance else {}
            own = {plan.buffers[p].value for s in plan.steps_of(current) for p in plan.steps[s].writes}
        yield from _check_regions(plan, number, step, touched)
        for read in step.reads:
            if read.buffer is None:
                if read.value not in inputs and volume(read.region):
                    yield Violation("source", f"step {number} reads {read.value.name} from nowhere")
                continue
            buffer = plan.buffers[read.buffer]
            maker = step.node
            if not is_instance:
                maker = sources.get((step.node, read.value, read.region), -1)
            elif read.value not in own:
                makers = [e.producer for e in plan.graph.reads(step.node) if e.value is read.value]
                maker = makers[0] if len(makers) == 1 else -1
            if buffer.value is not read.value or buffer.node != maker:
                yield Violation("source", f"step {number} reads {read.value.name} of {buffer}")
            if not _covers(buffer.region, read.region):
                yield Violation("source", f"step {number} reads {read.region} of {buffer}: {buffer.region}")


def _check_regions(
    plan: ScopePlan, number: int, step: InstanceStep, touched: Mapping[Value, Region]
) -> Iterator[Violation]:
    node = plan.graph.nodes[step.node]
    made = {plan.buffers[p].value: plan.buffers[p].region for p in step.writes}
    if node.kind is not Kind.INSTANCE:
        brought = [(e.value, e.region) for e in plan.graph.reads(step.node)]
        if made != dict(node.outputs) or [(r.value, r.region) for r in step.reads] != brought:
            yield Violation("regions", f"step {number} does not pass on what {node} does")
        return
    layer = _layers(plan, node)[step.layer]
    wanted = {v: touched[v] for v in _escaping(plan, layer) if v in touched}
    if tuple(layer) != step.operators or made != wanted:
        yield Violation("regions", f"step {number} makes {made} instead of {wanted}")
    inside = {v for n in layer for v in n.results()}
    needs = {v: r for v, r in _needs(layer, wanted).items() if v not in inside}
    if {r.value: r.region for r in step.reads} != needs or len(needs) != len(step.reads):
        yield Violation("regions", f"step {number} does not read the regions that it needs")
    for buffer in (plan.buffers[p] for p in step.writes):
        if buffer.size_bytes != plan.graph.bytes_of(buffer.value, buffer.region):
            yield Violation("size", f"{buffer} has {buffer.size_bytes} bytes")


def _covers(outer: Region, inner: Region) -> bool:
    return not volume(inner) or all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner, strict=True))


def _check_lives(plan: ScopePlan) -> Iterator[Violation]:
    last = {}
    reads: dict[int, list[int]] = {}
    for number, step in enumerate(plan.steps):
        for written in step.writes:
            buffer = plan.buffers[written]
            last[written] = len(plan.steps) - 1 if _is_result(plan, buffer) else number
            if buffer.first_step != number or buffer.node != step.node:
                yield Violation("live", f"{buffer} is made in step {number}, not {buffer.first_step}")
        for read in step.reads:
            if read.buffer is None:
                continue
            buffer = plan.buffers[read.buffer]
            last[read.buffer] = max(number, last.get(read.buffer, 0))
            reads.setdefault(read.buffer, []).append(number)
            if not buffer.first_step < number <= buffer.last_step:
                yield Violation("live", f"step {number} reads {buffer}, which has a place in {_life(buffer)}")
    for buffer in plan.buffers:
        if last.get(buffer.id) != buffer.last_step:
            needed = last.get(buffer.id)
            yield Violation("live", f"{buffer} is needed to step {needed}, kept in {_life(buffer)}")
        stated = plan.timeline.problem.buffers[buffer.id].read_steps
        if stated != tuple(dict.fromkeys(reads.get(buffer.id, ()))):
            yield Violation("live", f"{buffer} is read in steps {reads.get(buffer.id)}, not {stated}")


def _life(buffer: PlacedBuffer) -> str:
    return f"steps {buffer.first_step} to {buffer.last_step}"


def _is_result(plan: ScopePlan, buffer: PlacedBuffer) -> bool:
    made_here = plan.graph.nodes[buffer.node].kind is Kind.INSTANCE
    return made_here and buffer.value in plan.graph.partition.graph.outputs


def _check_homes(plan: ScopePlan, bindings: Bindings) -> Iterator[Violation]:
    for placed, buffer in zip(plan.buffers, plan.timeline.problem.buffers, strict=True):
        home = Scope.LOCAL
        if _is_result(plan, placed):
            home = Scope.MAIN
        elif placed.value in plan.graph.nodes[placed.node].outputs:
            is_launched = bool(bindings.launches)
            homes = (Scope.SHARED, Scope.MAIN) if is_launched else (Scope.SHARED,)
            home = bindings.scopes[placed.node] if bindings.scopes[placed.node] in homes else Scope.LOCAL
        if buffer.level != _FROM_INSIDE[home]:
            yield Violation("scope", f"{placed} is asked for in level {buffer.level} instead of {home}")


def _check_reuse(plan: ScopePlan) -> Iterator[Violation]:
    numbers = {str(b): b.id for b in plan.buffers}
    for new, buffer in zip(plan.buffers, plan.timeline.problem.buffers, strict=True):
        for name in buffer.may_reuse:
            old = plan.buffers[numbers[name]]
            step = next(iter(plan.steps[new.first_step : new.first_step + 1]), None)
            read = None if step is None else next((r for r in step.reads if r.buffer == old.id), None)
            fits = (
                step is not None
                and read is not None
                and volume(read.region) >= volume(new.region)
                and old.last_step == new.first_step
                and new.size_bytes <= old.size_bytes
                and step.writes == (new.id,)
                and not _is_result(plan, old)
            )
            if not fits:
                yield Violation("in-place", f"{new} cannot be written in place of {old}")


def _check_company(plan: ScopePlan, bindings: Bindings) -> Iterator[Violation]:
    """A buffer has its place as long as it is needed, and of kernels in different groups of a stage, what
    either reads or makes lies nowhere that the other writes."""
    steps_of: dict[int, dict[int, list[int]]] = {}
    for launch in bindings.launches:
        steps = [s for node in launch.nodes for s in plan.steps_of(node)]
        steps_of.setdefault(launch.stage, {}).setdefault(launch.group, []).extend(steps)
    stages = [groups for groups in steps_of.values() if len(groups) > 1]
    bounds = {}
    for groups in stages:
        together = [s for steps in groups.values() for s in steps]
        bounds.update(dict.fromkeys(together, (min(together), max(together))))
    for placed, buffer in zip(plan.buffers, plan.timeline.problem.buffers, strict=True):
        first, last = placed.first_step, placed.last_step
        expected = bounds.get(first, (first, first))[0], bounds.get(last, (last, last))[1]
        if (buffer.first_step, buffer.last_step) != expected:
            given = f"{buffer.first_step} to {buffer.last_step}"
            yield Violation("live", f"{placed} has a place in steps {given}, not {expected}")
    for groups in stages:
        written = {g: {b for s in steps for b in plan.steps[s].writes} for g, steps in groups.items()}
        read = {
            g: {r.buffer for s in steps for r in plan.steps[s].reads if r.buffer is not None}
            for g, steps in groups.items()
        }
        for group, other in permutations(groups, 2):
            for new in written[group]:
                for old in (written[other] | read[other]) - {new}:
                    if _share_a_place(plan.buffers[new], plan.buffers[old]):
                        yield Violation(
                            "company",
                            f"{plan.buffers[new]} and {plan.buffers[old]} share a place at the same time",
                        )


def _share_a_place(a: PlacedBuffer, b: PlacedBuffer) -> bool:
    return a.scope is b.scope and a.offset_bytes < b.end_bytes and b.offset_bytes < a.end_bytes
