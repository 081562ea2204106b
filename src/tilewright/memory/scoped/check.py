"""Independent check of a scope plan: regions, live ranges and what overlaps are worked out anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region, hull, input_regions, volume
from tilewright.memory.scoped.base import Piece, ScopePlan, Step
from tilewright.planning import Violation
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.instances import InstanceNode, Kind

_FROM_INSIDE = {Scope.LOCAL: 0, Scope.SHARED: 1, Scope.MAIN: 2}


def check_scopes(plan: ScopePlan, bindings: Bindings) -> tuple[Violation, ...]:
    """Everything wrong with a plan: nothing, if it is valid.

    Checked: the steps are the layers that each node needs, in the order that was asked for, and read and
    write the regions that they must; no piece is read before it is made or after its place is given up;
    results of the network lie in main memory until the end, nothing lies further inside than it was bound; at
    no step is more live than a level holds, no two pieces live at a step share a byte unless one is written
    over an operand that dies there; the summary is that of the pieces.
    """
    return (
        *_check_steps(plan),
        *_check_reads(plan),
        *_check_lives(plan),
        *_check_homes(plan, bindings),
        *_check_places(plan),
        *_check_levels(plan),
    )


def _check_steps(plan: ScopePlan) -> Iterator[Violation]:
    expected = [(place, layer) for place in plan.order for layer in _needed_layers(plan, place)]
    found = [(s.node, s.layer) for s in plan.steps]
    if found != expected:
        yield Violation("steps", f"{len(found)} steps, not the {len(expected)} that the order asks for")
    for number, piece in enumerate(plan.pieces):
        if piece.id != number:
            yield Violation("number", f"piece {piece.id} stands at place {number}")
    written = sorted(p for s in plan.steps for p in s.writes)
    if written != list(range(len(plan.pieces))):
        yield Violation("written", "not every piece is written by one step")


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
            own = {plan.pieces[p].value for s in plan.steps_of(current) for p in plan.steps[s].writes}
        yield from _check_regions(plan, number, step, touched)
        for read in step.reads:
            if read.piece is None:
                if read.value not in inputs and volume(read.region):
                    yield Violation("source", f"step {number} reads {read.value.name} from nowhere")
                continue
            piece = plan.pieces[read.piece]
            maker = step.node
            if not is_instance:
                maker = sources.get((step.node, read.value, read.region), -1)
            elif read.value not in own:
                makers = [e.producer for e in plan.graph.reads(step.node) if e.value is read.value]
                maker = makers[0] if len(makers) == 1 else -1
            if piece.value is not read.value or piece.node != maker:
                yield Violation("source", f"step {number} reads {read.value.name} of {piece}")
            if not _covers(piece.region, read.region):
                yield Violation("source", f"step {number} reads {read.region} of {piece}: {piece.region}")


def _check_regions(
    plan: ScopePlan, number: int, step: Step, touched: Mapping[Value, Region]
) -> Iterator[Violation]:
    node = plan.graph.nodes[step.node]
    made = {plan.pieces[p].value: plan.pieces[p].region for p in step.writes}
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
    for piece in (plan.pieces[p] for p in step.writes):
        if piece.size_bytes != plan.graph.bytes_of(piece.value, piece.region):
            yield Violation("size", f"{piece} has {piece.size_bytes} bytes")


def _covers(outer: Region, inner: Region) -> bool:
    return not volume(inner) or all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner, strict=True))


def _check_lives(plan: ScopePlan) -> Iterator[Violation]:
    last = {}
    for number, step in enumerate(plan.steps):
        for written in step.writes:
            piece = plan.pieces[written]
            last[written] = len(plan.steps) - 1 if _is_result(plan, piece) else number
            if piece.first_step != number or piece.node != step.node:
                yield Violation("live", f"{piece} is made in step {number}, not {piece.first_step}")
        for read in step.reads:
            if read.piece is None:
                continue
            piece = plan.pieces[read.piece]
            last[read.piece] = max(number, last.get(read.piece, 0))
            if not piece.first_step < number <= piece.last_step:
                yield Violation("live", f"step {number} reads {piece}, which has a place in {_life(piece)}")
    for piece in plan.pieces:
        if last.get(piece.id) != piece.last_step:
            yield Violation("live", f"{piece} is needed to step {last.get(piece.id)}, kept in {_life(piece)}")


def _life(piece: Piece) -> str:
    return f"steps {piece.first_step} to {piece.last_step}"


def _is_result(plan: ScopePlan, piece: Piece) -> bool:
    made_here = plan.graph.nodes[piece.node].kind is Kind.INSTANCE
    return made_here and piece.value in plan.graph.partition.graph.outputs


def _check_homes(plan: ScopePlan, bindings: Bindings) -> Iterator[Violation]:
    for piece in plan.pieces:
        least = Scope.LOCAL
        outputs = plan.graph.nodes[piece.node].outputs
        if _is_result(plan, piece):
            least = Scope.MAIN
        elif piece.value in outputs and bindings.scopes[piece.node] is Scope.SHARED:
            least = Scope.SHARED
        if _FROM_INSIDE[piece.scope] < _FROM_INSIDE[least]:
            yield Violation("scope", f"{piece} lies in {piece.scope} instead of {least}")
        if piece.is_spilled != (piece.scope is not least):
            yield Violation("scope", f"{piece} in {piece.scope} is spilled or not, wrongly")


def _check_places(plan: ScopePlan) -> Iterator[Violation]:
    for piece in plan.pieces:
        capacity = plan.levels[piece.scope].capacity_bytes
        if piece.offset_bytes < 0 or (capacity is not None and piece.end_bytes > capacity):
            yield Violation("place", f"{piece} ends at {piece.end_bytes} of {capacity} in {piece.scope}")
    live: list[Piece] = []
    for new in sorted(plan.pieces, key=lambda p: p.first_step):
        live = [p for p in live if p.last_step >= new.first_step]
        over = None if new.written_over is None else plan.pieces[new.written_over]
        if over is not None:
            yield from _check_takeover(plan, new, over)
        for old in live:
            shared = min(old.end_bytes, new.end_bytes) - max(old.offset_bytes, new.offset_bytes)
            if old.scope is new.scope and shared > 0 and old is not over:
                yield Violation("overlap", f"{old} and {new} share {shared} bytes of {old.scope}")
        live.append(new)


def _check_takeover(plan: ScopePlan, new: Piece, old: Piece) -> Iterator[Violation]:
    step = plan.steps[new.first_step]
    read = next((r for r in step.reads if r.piece == old.id), None)
    fits = (
        read is not None
        and volume(read.region) >= volume(new.region)
        and (old.scope, old.offset_bytes, old.last_step) == (new.scope, new.offset_bytes, new.first_step)
        and new.size_bytes <= old.size_bytes
        and step.writes == (new.id,)
        and not _is_result(plan, old)
    )
    if not fits:
        yield Violation("overlap", f"{new} cannot be written over {old}")


def _check_levels(plan: ScopePlan) -> Iterator[Violation]:
    for scope, use in plan.levels.items():
        here = [p for p in plan.pieces if p.scope is scope]
        most = 0
        live: dict[int, int] = {}
        for number, step in enumerate(plan.steps):
            made = [plan.pieces[p] for p in step.writes if plan.pieces[p].scope is scope]
            live.update({p.id: p.size_bytes for p in made})
            shared = sum(p.size_bytes for p in made if p.written_over is not None)
            most = max(most, sum(live.values()) - shared)
            live = {p: size for p, size in live.items() if plan.pieces[p].last_step > number}
        if use.capacity_bytes is not None and most > use.capacity_bytes:
            yield Violation("capacity", f"{most} bytes are live in {scope}, which has {use.capacity_bytes}")
        used = max((p.end_bytes for p in here), default=0)
        if (use.scope, use.num_pieces, use.live_bytes, use.used_bytes) != (scope, len(here), most, used):
            yield Violation("summary", f"{scope}: {use}, but {len(here)} pieces, {most} live, {used} used")
