"""Partition and schedule of a program as plain values, and back onto the graph they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilewright.artifact.qualities import StoredQuality, encode_quality
from tilewright.fields import FieldError, decoded, inside
from tilewright.ir.graph import Graph, Node, Value
from tilewright.mapping.chains.plan import ChainPlan, Tiling
from tilewright.options import Options
from tilewright.partition.base import EdgeDecision, Partition, Reason, Subgraph, make_subgraph, priced_at
from tilewright.partition.check_forms import form_violations
from tilewright.partition.check_splits import tiling_violations
from tilewright.partition.form import Blocking, Form, KernelForm
from tilewright.partition.fusion_records import FusionRecord, Verdict
from tilewright.partition.layers import Layer, layer_of
from tilewright.partition.split import WHOLE, Split, split_of, tiled_jointly
from tilewright.planning import Provenance
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.program import Program
from tilewright.schedule.base import Group, Instance, Schedule, Stage
from tilewright.schedule.lanes import Lane
from tilewright.tuning import Choice


def encode_plan(program: Program) -> dict[str, Any]:
    """Nodes by their position in the graph, subgraphs by their number, values by name."""
    position = {node: i for i, node in enumerate(program.graph.nodes)}
    partition, schedule = program.partition, program.schedule
    recipe = program.recipe
    return {
        **({} if recipe == PLAIN_RECIPE else {"recipe": {k: v for k, v in asdict(recipe).items() if v}}),
        "partition": {
            "subgraphs": [[position[n] for n in s.nodes] for s in partition.subgraphs],
            "decisions": [
                [position[d.producer], position[d.consumer], d.value.name, str(d.reason)]
                for d in partition.decisions
            ],
            **_forms(partition),
            **_layer_fields(partition, position),
            **_fusions(partition, position),
            "quality": encode_quality(partition.quality),
            "provenance": _provenance(partition.provenance),
        },
        "schedule": {
            "stages": [[_group(group) for group in stage.groups] for stage in schedule.stages],
            **(_split_fields(schedule.splits) if schedule.splits != partition.splits else {}),
            "quality": encode_quality(schedule.quality),
            "provenance": _provenance(schedule.provenance),
        },
        "remarks": list(program.remarks),
        **({"tuned": list(program.tuned)} if program.tuned else {}),
    }


@dataclass(frozen=True, slots=True)
class _KernelFields:
    nodes: tuple[int, ...]
    block: tuple[int, ...] | None = None
    strip: int = 1
    saved_share: float = 0.0
    choices: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _FormFields:
    subgraph: int
    kernels: tuple[_KernelFields, ...]


@dataclass(frozen=True, slots=True)
class _TilingFields:
    """A layer of a subgraph that is tiled jointly: loops from the outermost, their tiles, depths by value."""

    subgraph: int
    layer: int
    loops: tuple[int, ...]
    tiles: tuple[int, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _PartitionFields:
    subgraphs: tuple[tuple[int, ...], ...]
    decisions: tuple[tuple[int, int, str, Reason], ...]
    quality: StoredQuality
    provenance: Provenance
    kernels: tuple[_FormFields, ...] = ()
    forms: tuple[tuple[int, tuple[int, ...], int, float], ...] = ()  # in older artifacts: of whole subgraphs
    splits: tuple[tuple[int, ...], ...] = ()
    keeps_rows: tuple[int, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()
    tilings: tuple[_TilingFields, ...] = ()
    layers: tuple[tuple[tuple[int, ...], ...], ...] | None = None
    element_bytes: Mapping[str, int] | None = None
    in_place: bool = True
    fusions: tuple[tuple[int, int, str, Verdict, float | None, float | None, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _GroupFields:
    instances: tuple[tuple[int, ...], ...]
    num_cores: int | None
    first_core: int | None = None  # most have none
    inside: tuple[tuple[tuple[tuple[int, tuple[int, ...]], ...], ...], ...] = ()  # lanes: cores, layers


@dataclass(frozen=True, slots=True)
class _ScheduleFields:
    stages: tuple[tuple[_GroupFields, ...], ...]
    quality: StoredQuality
    provenance: Provenance
    splits: tuple[tuple[int, ...], ...] | None = None  # those of the partition
    keeps_rows: tuple[int, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()
    tilings: tuple[_TilingFields, ...] = ()


@dataclass(frozen=True, slots=True)
class _PlanFields:
    partition: _PartitionFields
    schedule: _ScheduleFields
    remarks: tuple[str, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)  # in older artifacts
    recipe: Recipe = PLAIN_RECIPE
    tuned: tuple[str, ...] = ()


def decode_plan(document: Any, graph: Graph, options: Options) -> Program:
    """The program that `encode_plan` described.

    Raises:
        FieldError: naming what is missing, of another type, or does not fit the graph.
    """
    stored = decoded(_PlanFields, document)
    nodes = graph.nodes
    values = {v.name: v for v in graph.values()}

    def node(position: int) -> Node:
        if position >= len(nodes):
            raise FieldError(f"node {position} of {len(nodes)}", ".partition")
        return nodes[position]

    def value(name: str) -> Value:
        if name not in values:
            raise FieldError(f"{name[:40]!r} is no value of the graph", ".partition.decisions")
        return values[name]

    qualities = []
    for where, fields in (("partition", stored.partition), ("schedule", stored.schedule)):
        with inside(where), inside("quality"):
            qualities.append(fields.quality.quality())
    subgraphs = [
        make_subgraph(i, [node(p) for p in members], graph)
        for i, members in enumerate(stored.partition.subgraphs)
    ]
    for number, form in _read_forms(stored.partition, subgraphs):
        _require_fitting(form, subgraphs[number], graph)
        subgraphs[number] = replace(subgraphs[number], form=form)
    partition = Partition(
        graph,
        tuple(subgraphs),
        tuple(
            EdgeDecision(node(producer), node(consumer), value(name), reason)
            for producer, consumer, name, reason in stored.partition.decisions
        ),
        priced_at(qualities[0]),
        stored.partition.provenance,
        _read_splits(stored.partition, subgraphs, ".partition"),
        _read_layers(stored.partition.layers, subgraphs, node, graph),
        _read_sizes(stored.partition.element_bytes, graph),
        stored.partition.in_place,
        fusions=tuple(
            FusionRecord(node(producer), node(consumer), value(name), verdict, fused, apart, unit)
            for producer, consumer, name, verdict, fused, apart, unit in stored.partition.fusions
        ),
    )
    splits = partition.splits
    if stored.schedule.splits is not None:
        splits = _read_splits(stored.schedule, subgraphs, ".schedule")
    for where, stated in ((".partition", partition.splits), (".schedule", splits)):
        for subgraph, split in zip(subgraphs, stated, strict=True):
            layers = [layer.nodes for layer in partition.layers_of(subgraph)] if split.tilings else []
            fault = next(tiling_violations(subgraph, split, layers), None)
            if fault is not None:
                raise FieldError(str(fault)[:200], f"{where}.tilings")
    stages = tuple(Stage(tuple(_read_group(g, splits) for g in stage)) for stage in stored.schedule.stages)
    schedule = Schedule(partition, stages, qualities[1], stored.schedule.provenance, splits)
    return Program(
        graph, partition, schedule, options, remarks=stored.remarks, recipe=stored.recipe, tuned=stored.tuned
    )


def _forms(partition: Partition) -> dict[str, Any]:
    """The kernels of each subgraph that has a form, where any has one."""
    forms = [{"subgraph": s.id, **s.form.to_json()} for s in partition.subgraphs if s.form is not None]
    return {"kernels": forms} if forms else {}


def _read_forms(stored: _PartitionFields, subgraphs: Sequence[Subgraph]) -> Iterator[tuple[int, Form]]:
    where = ".partition.kernels" if stored.kernels else ".partition.forms"
    for number in (*(form.subgraph for form in stored.kernels), *(form[0] for form in stored.forms)):
        if number >= len(subgraphs):
            raise FieldError(f"subgraph {number} of {len(subgraphs)}", where)
    for fields in stored.kernels:
        yield fields.subgraph, Form(tuple(map(_read_kernel, fields.kernels)))
    for number, block, strip, saved_share in stored.forms:
        yield number, Form.whole(len(subgraphs[number].nodes), Blocking(block, strip), saved_share)


def _read_kernel(stored: _KernelFields) -> KernelForm:
    blocking = None if stored.block is None else Blocking(stored.block, stored.strip)
    choices = ((s, _read_choice(s, choice, ".partition.kernels")) for s, choice in stored.choices.items())
    return KernelForm(stored.nodes, blocking, stored.saved_share, tuple(choices))


def _require_fitting(form: Form, subgraph: Subgraph, graph: Graph) -> None:
    """That code can be generated from a form."""
    said = next(form_violations(graph, replace(subgraph, form=form)), None)
    if said is not None:
        raise FieldError(said[:200], ".partition.kernels")


def _fusions(partition: Partition, position: Mapping[Node, int]) -> dict[str, Any]:
    """What became of each edge that rules let fuse, where a partitioner goes by rules."""
    records = [
        [
            position[r.producer],
            position[r.consumer],
            r.value.name,
            str(r.verdict),
            r.fused_cost,
            r.apart_cost,
            r.unit,
        ]
        for r in partition.fusions
    ]
    return {"fusions": records} if records else {}


def _provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        "planner": provenance.planner,
        "seed": provenance.seed,
        "num_evaluations": provenance.num_evaluations,
        "note": provenance.note,
    }


def _layer_fields(partition: Partition, position: Mapping[Node, int]) -> dict[str, Any]:
    """What a partition says of instances, layers and sizes; nothing of what follows from the graph."""
    fields: dict[str, Any] = {}
    if any(split != WHOLE for split in partition.splits):
        fields |= _split_fields(partition.splits)
    if partition.layers is not None:
        fields["layers"] = [
            [[position[n] for n in layer.nodes] for layer in layers] for layers in partition.layers
        ]
    if partition.element_bytes is not None:
        fields["element_bytes"] = dict(partition.element_bytes)
    if not partition.in_place:
        fields["in_place"] = False
    return fields


def _split_fields(splits: Sequence[Split]) -> dict[str, Any]:
    """Of each subgraph that is split: its number, then axis and factor of each cut, one after another.

    `keeps_rows` are those whose slices keep rows for each other, `cores` say in how many parts along each
    axis cores share what a slice makes.
    """
    stated = [(i, split) for i, split in enumerate(splits) if split.num_instances > 1]
    kept = [i for i, split in stated if split.chain_length > 1]
    shared = [[i, *split.cores] for i, split in enumerate(splits) if split.cores]
    tilings = [
        {
            "subgraph": i,
            "layer": layer,
            "loops": plan.tiling.order,
            "tiles": plan.tiling.tiles,
            "depths": plan.depths,
        }
        for i, split in enumerate(splits)
        for layer, plan in split.tilings
    ]
    return {
        "splits": [[i, *(number for cut in split.cuts for number in cut)] for i, split in stated],
        **({"keeps_rows": kept} if kept else {}),
        **({"cores": shared} if shared else {}),
        **({"tilings": tilings} if tilings else {}),
    }


def _read_splits(
    stored: _PartitionFields | _ScheduleFields, subgraphs: Sequence[Subgraph], where: str
) -> tuple[Split, ...]:
    splits = [WHOLE] * len(subgraphs)
    path = f"{where}.splits"
    for numbers in stored.splits or ():
        if len(numbers) % 2 != 1 or numbers[0] >= len(subgraphs):
            raise FieldError(
                f"{list(numbers[:10])} is no subgraph (of {len(subgraphs)}) with axes and factors", path
            )
        number, *rest = numbers
        cuts = list(zip(rest[::2], rest[1::2], strict=True))
        shapes = [v.shape for v in subgraphs[number].outputs]
        if len({dim for dim, _ in cuts}) != len(cuts) or any(
            dim >= len(shape) or not 1 <= factor <= shape[dim] for shape in shapes for dim, factor in cuts
        ):
            raise FieldError(f"results {shapes} of subgraph {number} cannot be split by {cuts[:5]}", path)
        splits[number] = split_of(cuts, keeps_rows=number in stored.keeps_rows)
    for number in stored.keeps_rows:
        if number >= len(subgraphs) or splits[number].chain_length == 1:
            raise FieldError(f"subgraph {number} is not split, so it keeps no rows", f"{where}.keeps_rows")
    tilings: dict[int, dict[int, ChainPlan]] = {}
    for tiled in stored.tilings:
        if tiled.subgraph >= len(subgraphs) or splits[tiled.subgraph] is not WHOLE:
            raise FieldError(f"subgraph {tiled.subgraph} has no layers to tile", f"{where}.tilings")
        plan = ChainPlan(Tiling(tiled.loops, tiled.tiles), tiled.depths)
        tilings.setdefault(tiled.subgraph, {})[tiled.layer] = plan
    for number, plans in tilings.items():
        splits[number] = tiled_jointly(plans)
    for numbers in stored.cores:
        number, parts = numbers[0] if numbers else len(subgraphs), numbers[1:]
        outputs = subgraphs[number].outputs[:1] if 0 <= number < len(subgraphs) else ()
        if [len(parts)] != [len(value.shape) for value in outputs] or min(parts, default=0) < 1:
            text = f"{list(numbers[:10])} is no subgraph with parts along all axes"
            raise FieldError(text, f"{where}.cores")
        splits[number] = replace(splits[number], cores=parts)
    return tuple(splits)


def _read_layers(
    stored: Sequence[Sequence[Sequence[int]]] | None,
    subgraphs: Sequence[Subgraph],
    node: Callable[[int], Node],
    graph: Graph,
) -> tuple[tuple[Layer, ...], ...] | None:
    if stored is None:
        return None
    layers = [[[node(p) for p in layer] for layer in layers] for layers in stored]
    members = [[n for layer in of_subgraph for n in layer] for of_subgraph in layers]
    if [set(nodes) for nodes in members] != [set(s.nodes) for s in subgraphs] or any(
        not layer for of_subgraph in layers for layer in of_subgraph
    ):
        raise FieldError("the layers are not those of the subgraphs", ".partition.layers")
    for nodes in members:
        seen: set[Node] = set()
        for member in nodes:
            if member in seen or any(v.producer in set(nodes) - seen for v in member.operands()):
                raise FieldError(f"node {member.name!r} is out of order", ".partition.layers")
            seen.add(member)
    results = frozenset(graph.outputs)
    return tuple(tuple(layer_of(nodes, results) for nodes in of_subgraph) for of_subgraph in layers)


def _read_sizes(stored: Mapping[str, int] | None, graph: Graph) -> Mapping[str, int] | None:
    missing = {str(v.dtype) for v in graph.values()} - stored.keys() if stored is not None else set()
    if missing or (stored is not None and not all(stored.values())):
        raise FieldError(f"no size of {sorted(missing) or 'some type'}", ".partition.element_bytes")
    return stored


def _group(group: Group) -> dict[str, Any]:
    """An instance is its subgraph and its index; the index is left out where it is 0."""
    instances = [[i.subgraph_id, i.index] if i.index else [i.subgraph_id] for i in group.instances]
    first = {} if group.first_core is None else {"first_core": group.first_core}
    inside = [
        [[[lane.num_cores, list(lane.layers)] for lane in section] for section in sections]
        for sections in group.inside
    ]
    lanes = {"inside": inside} if group.has_lanes else {}
    return {"instances": instances, "num_cores": group.num_cores} | first | lanes


def _read_group(stored: _GroupFields, splits: Sequence[Split]) -> Group:
    for numbers in stored.instances:
        number, *index = numbers or (len(splits),)
        if len(index) > 1 or number >= len(splits) or max(index, default=0) >= splits[number].num_instances:
            raise FieldError(
                f"{list(numbers[:10])} is no subgraph (of {len(splits)}) with the index of an instance",
                ".schedule.stages",
            )
    instances = tuple(Instance(*numbers) for numbers in stored.instances)
    inside = tuple(
        tuple(tuple(Lane(layers, cores) for cores, layers in section) for section in sections)
        for sections in stored.inside
    )
    return Group(instances, stored.num_cores, stored.first_core, inside)


def _read_choice(signature: str, document: Mapping[str, str | int], where: str = "") -> Choice:
    choice = Choice.from_json(document)
    if choice is None:
        raise FieldError("is no choice of a template", f"{where}.choices.{signature[:40]}")
    return choice
