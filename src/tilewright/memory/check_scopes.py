"""Independent check of a scope plan: regions, live ranges and what overlaps are worked out anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from tilewright.ir.graph import Value
from tilewright.ir.region import Region, intersect, volume
from tilewright.memory.check import check_memory
from tilewright.memory.instances import InstanceStep, Read
from tilewright.memory.scopes import PlacedBuffer, ScopePlan
from tilewright.partition.check_rows import leaving, needs
from tilewright.partition.layers import Layer
from tilewright.planning import Violation
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.check_instances import Chains
from tilewright.schedule.instances import InstanceNode, Kind

_FROM_INSIDE = {Scope.LOCAL: 0, Scope.SHARED: 1, Scope.MAIN: 2}


def check_scopes(plan: ScopePlan, bindings: Bindings, chains: Chains | None = None) -> tuple[Violation, ...]:
    """Everything wrong with a plan: nothing, if it is valid; `chains` are those of its instances, if known.

    Checked: the steps are the layers that each node needs, in the order that was asked for, and read and
    write the regions that they must; rows that are kept are copied once, and read by instances of the same
    chain; no buffer is read before it is made or after it is given up; results of the network lie in main
    memory until the end, the rest is asked for in the scope that it was bound to; nothing is written in place
    of what is still needed; kernels that run at the same time share no place. The rest is the check of any
    memory plan.
    """
    chains = chains or Chains(plan.graph)
    return (
        *_check_steps(plan, chains),
        *_check_reads(plan, chains),
        *_check_lives(plan),
        *_check_homes(plan, bindings),
        *_check_company(plan, bindings),
        *_check_reuse(plan),
        *check_memory(plan.timeline.problem, plan.memory),
    )


def _check_steps(plan: ScopePlan, chains: Chains) -> Iterator[Violation]:
    expected = [(place, layer) for place in plan.order for layer in _needed_layers(plan, place, chains)]
    found = [(s.node, s.layer) for s in plan.steps if not _copies_rows(plan, s)]
    if found != expected:
        yield Violation("steps", f"{len(found)} steps, not the {len(expected)} that the order asks for")
    written = sorted(p for s in plan.steps for p in s.writes)
    if written != list(range(len(plan.buffers))):
        yield Violation("written", "not every buffer is written by one step")


def _copies_rows(plan: ScopePlan, step: InstanceStep) -> bool:
    return plan.graph.nodes[step.node].kind is Kind.INSTANCE and not step.operators


def _needed_layers(plan: ScopePlan, place: int, chains: Chains) -> list[int]:
    node = plan.graph.nodes[place]
    if node.kind is not Kind.INSTANCE:
        return [0]
    touched = _touched(plan, node, chains)[0]
    return [
        number
        for number, layer in enumerate(_layers(plan, node))
        if any(v in touched for v in leaving(layer.nodes, plan.graph.results))
    ]


def _layers(plan: ScopePlan, node: InstanceNode) -> Sequence[Layer]:
    partition = plan.graph.partition
    return partition.layers_of(partition.subgraphs[node.subgraph_id])


def _touched(
    plan: ScopePlan, node: InstanceNode, chains: Chains
) -> tuple[dict[Value, Region], dict[Value, Region]]:
    """Regions of all values that an instance makes, and the rows that it copies for later ones."""
    link = chains.link_of(node)
    if link is None:
        return needs(plan.graph.partition.subgraphs[node.subgraph_id].nodes, node.outputs), {}
    kept = {v: region for v, (region, _) in link.kept.items()}
    return link.made, {v: region for v, region in kept.items() if region != link.made[v]}


def _check_reads(plan: ScopePlan, chains: Chains) -> Iterator[Violation]:
    current = -1
    touched: dict[Value, Region] = {}
    copied: dict[Value, Region] = {}
    for number, step in enumerate(plan.steps):
        node = plan.graph.nodes[step.node]
        is_instance = node.kind is Kind.INSTANCE
        if step.node != current:
            current = step.node
            touched, copied = _touched(plan, node, chains) if is_instance else ({}, {})
        if _copies_rows(plan, step):
            yield from _check_copy(plan, number, step, copied)
        else:
            yield from _check_regions(plan, number, step, touched)
        for read in step.reads:
            yield from _check_source(plan, number, read)
        is_last = number + 1 == len(plan.steps) or plan.steps[number + 1].node != current
        if is_last and copied:
            yield Violation("rows", f"{node} does not keep {[v.name for v in copied]}")


def _check_source(plan: ScopePlan, number: int, read: Read) -> Iterator[Violation]:
    """Whether what a step reads lies where it reads it, and was made by the node that should have made it."""
    step = plan.steps[number]
    node = plan.graph.nodes[step.node]
    if read.buffer is None:
        if read.value not in plan.graph.partition.graph.inputs and volume(read.region):
            yield Violation("source", f"step {number} reads {read.value.name} from nowhere")
        return
    buffer = plan.buffers[read.buffer]
    maker = plan.graph.nodes[buffer.node]
    subgraph = plan.graph.partition.subgraphs[node.subgraph_id]
    if node.kind is not Kind.INSTANCE:
        is_right = any(
            e.producer == maker.id and e.value is read.value and e.region == read.region
            for e in plan.graph.reads(step.node)
        )
    elif read.value in subgraph.inputs:
        makers = [e.producer for e in plan.graph.reads(step.node) if e.value is read.value]
        is_right = makers == [maker.id]
    else:
        length = plan.graph.splits[subgraph.id].chain_length
        is_right = maker is node or (
            maker.kind is Kind.INSTANCE
            and maker.subgraph_id == subgraph.id
            and maker.index < node.index
            and maker.index // length == node.index // length
        )
    if buffer.value is not read.value or not is_right:
        yield Violation("source", f"step {number} reads {read.value.name} of {buffer}")
    if not _covers(buffer.region, read.region):
        yield Violation("source", f"step {number} reads {read.region} of {buffer}: {buffer.region}")


def _check_copy(
    plan: ScopePlan, number: int, step: InstanceStep, copied: dict[Value, Region]
) -> Iterator[Violation]:
    """A copy of rows: of one value that its node made, those that later instances read."""
    written = [plan.buffers[p] for p in step.writes]
    if len(written) != 1 or len(step.reads) != 1:
        yield Violation("rows", f"step {number} copies {len(step.reads)} values to {len(written)} buffers")
        return
    kept, read = written[0], step.reads[0]
    source = None if read.buffer is None else plan.buffers[read.buffer]
    is_right = (
        kept.is_kept
        and copied.pop(kept.value, None) == kept.region == read.region
        and read.value is kept.value
        and source is not None
        and source.node == step.node
        and not source.is_kept
    )
    if not is_right:
        yield Violation("rows", f"step {number} copies {read.region} of {kept.value.name}")


def _check_regions(
    plan: ScopePlan, number: int, step: InstanceStep, touched: Mapping[Value, Region]
) -> Iterator[Violation]:
    node = plan.graph.nodes[step.node]
    made = {plan.buffers[p].value: plan.buffers[p].region for p in step.writes}
    if node.kind is not Kind.INSTANCE:
        brought = [(e.value, e.region) for e in plan.graph.reads(node.id)]
        if made != dict(node.outputs) or [(r.value, r.region) for r in step.reads] != brought:
            yield Violation("regions", f"step {number} does not pass on what {node} does")
        return
    layer = _layers(plan, node)[step.layer].nodes
    wanted = {v: touched[v] for v in leaving(layer, plan.graph.results) if v in touched}
    if tuple(layer) != step.operators or made != wanted:
        yield Violation("regions", f"step {number} makes {made} instead of {wanted}")
    inside = {v for n in layer for v in n.results()}
    needed = {v: r for v, r in needs(layer, wanted).items() if v not in inside}
    read: dict[Value, list[Region]] = {}
    for part in step.reads:
        read.setdefault(part.value, []).append(part.region)
    if read.keys() != needed.keys() or not all(_make_up(read[v], r) for v, r in needed.items()):
        yield Violation("regions", f"step {number} does not read the regions that it needs")
    graph = plan.graph
    for buffer in (plan.buffers[p] for p in step.writes):
        bytes_of = graph.main_bytes_of if buffer.value in graph.results else graph.bytes_of
        if buffer.size_bytes != bytes_of(buffer.value, buffer.region):
            yield Violation("size", f"{buffer} has {buffer.size_bytes} bytes")


def _make_up(parts: Sequence[Region], whole: Region) -> bool:
    """Whether parts lie apart, and together are the whole."""
    return (
        all(_covers(whole, part) for part in parts)
        and sum(map(volume, parts)) == volume(whole)
        and not any(intersect(a, b) for i, a in enumerate(parts) for b in parts[i + 1 :])
    )


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
    launch_of = {node: i for i, launch in enumerate(bindings.launches) for node in launch.nodes}
    read_elsewhere = {
        read.buffer
        for step in plan.steps
        for read in step.reads
        if launch_of and read.buffer is not None
        if launch_of[plan.buffers[read.buffer].node] != launch_of[step.node]
    }
    lanes = [bindings.lane_of(step.node, step.layer) for step in plan.steps]
    between_lanes = {
        read.buffer
        for step, lane in zip(plan.steps, lanes, strict=True)
        for read in step.reads
        if read.buffer is not None and lanes[plan.buffers[read.buffer].first_step] != lane
    }
    groups = () if bindings.cores is None else bindings.cores.of_nodes
    crossing = {e.producer for e in plan.graph.edges if groups and groups[e.producer] != groups[e.consumer]}
    for placed, buffer in zip(plan.buffers, plan.timeline.problem.buffers, strict=True):
        home = Scope.LOCAL
        if _is_result(plan, placed) or placed.id in read_elsewhere:
            home = Scope.MAIN
        elif placed.value in plan.graph.nodes[placed.node].outputs and not placed.is_kept:
            home = bindings.scopes[placed.node]
            if home is Scope.MAIN and not launch_of:
                # Its node makes a result of the network, too.
                home = Scope.SHARED if placed.node in crossing else Scope.LOCAL
        if home is Scope.LOCAL and placed.id in between_lanes:
            home = Scope.SHARED
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


def _leaves_its_group(plan: ScopePlan, placed: PlacedBuffer, groups: Sequence[int]) -> bool:
    """Whether a buffer is of a node that makes something for another group of cores."""
    if placed.is_kept or placed.value not in plan.graph.nodes[placed.node].outputs:
        return False
    return any(groups[e.consumer] != groups[placed.node] for e in plan.graph.readers(placed.node))


def _check_company(plan: ScopePlan, bindings: Bindings) -> Iterator[Violation]:
    """A buffer has its place as long as it is needed, and of kernels in different groups of a stage, or lanes
    of a section, what either reads or makes lies nowhere that the other writes."""
    steps_of: dict[int, dict[int, list[int]]] = {}
    for launch in bindings.launches:
        steps = [s for node in launch.nodes for s in plan.steps_of(node)]
        steps_of.setdefault(launch.stage, {}).setdefault(launch.group, []).extend(steps)
    # Lanes of a section, too, are groups of cores at the same time, within one kernel.
    sections: dict[tuple[int, int], dict[int, list[int]]] = {}
    for number, step in enumerate(plan.steps):
        lane = bindings.lane_of(step.node, step.layer)
        if lane is not None:
            lanes = sections.setdefault((step.node, lane.section), {})
            lanes.setdefault(lane.number, []).append(number)
    stages = [*sections.values(), *(groups for groups in steps_of.values() if len(groups) > 1)]
    bounds = {}
    for groups in stages:
        together = [s for steps in groups.values() for s in steps]
        bounds.update(dict.fromkeys(together, (min(together), max(together))))
    groups_of_nodes = () if bindings.cores is None else bindings.cores.of_nodes
    running = list(dict.fromkeys(step.node for step in plan.steps))
    for placed, buffer in zip(plan.buffers, plan.timeline.problem.buffers, strict=True):
        first, last = placed.first_step, placed.last_step
        if groups_of_nodes and _leaves_its_group(plan, placed, groups_of_nodes):
            # A round of all groups longer, in which they may be at other nodes at the same time.
            at = running.index(plan.steps[last].node) + len(
                set(bindings.cores.groups if bindings.cores else ())
            )
            last = plan.steps_of(running[min(at, len(running)) - 1])[-1]
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
