"""Partition and schedule of a program as plain values, and back onto the graph they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.fields import FieldError, decoded
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.partition.base import EdgeDecision, Partition, Reason, Subgraph, make_subgraph
from tilewright.partition.form import MAX_BLOCKS, Blocking, Blockwise
from tilewright.planning import Provenance, Quality
from tilewright.program import Program
from tilewright.schedule.base import Group, Instance, Schedule, Slice, Stage, slice_of_cuts
from tilewright.tuning import Choice


def encode_plan(program: Program) -> dict[str, Any]:
    """Nodes by their position in the graph, subgraphs by their number, values by name."""
    position = {node: i for i, node in enumerate(program.graph.nodes)}
    partition, schedule = program.partition, program.schedule
    return {
        "partition": {
            "subgraphs": [[position[n] for n in s.nodes] for s in partition.subgraphs],
            "decisions": [
                [position[d.producer], position[d.consumer], d.value.name, str(d.reason)]
                for d in partition.decisions
            ],
            "forms": [
                [s.id, s.form.blocking.block, s.form.blocking.strip, s.form.saved_share]
                for s in partition.subgraphs
                if s.form is not None
            ],
            "quality": _quality(partition.quality),
            "provenance": _provenance(partition.provenance),
        },
        "schedule": {
            "stages": [[_group(group) for group in stage.groups] for stage in schedule.stages],
            "quality": _quality(schedule.quality),
            "provenance": _provenance(schedule.provenance),
        },
        "remarks": list(program.remarks),
        "choices": {signature: choice.to_json() for signature, choice in program.choices.items()},
    }


@dataclass(frozen=True, slots=True)
class _PartitionFields:
    subgraphs: tuple[tuple[int, ...], ...]
    decisions: tuple[tuple[int, int, str, Reason], ...]
    quality: Quality
    provenance: Provenance
    forms: tuple[tuple[int, tuple[int, ...], int, float], ...] = ()  # the first artifacts have none


@dataclass(frozen=True, slots=True)
class _GroupFields:
    instances: tuple[tuple[int, ...], ...]
    num_cores: int | None


@dataclass(frozen=True, slots=True)
class _ScheduleFields:
    stages: tuple[tuple[_GroupFields, ...], ...]
    quality: Quality
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class _PlanFields:
    partition: _PartitionFields
    schedule: _ScheduleFields
    remarks: tuple[str, ...]
    choices: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)


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

    subgraphs = [
        make_subgraph(i, [node(p) for p in members], graph)
        for i, members in enumerate(stored.partition.subgraphs)
    ]
    for number, block, strip, saved_share in stored.partition.forms:
        if number >= len(subgraphs):
            raise FieldError(f"subgraph {number} of {len(subgraphs)}", ".partition.forms")
        form = Blockwise(Blocking(block, strip), saved_share)
        _require_fitting(form.blocking, subgraphs[number])
        subgraphs[number] = replace(subgraphs[number], form=form)
    partition = Partition(
        graph,
        tuple(subgraphs),
        tuple(
            EdgeDecision(node(producer), node(consumer), value(name), reason)
            for producer, consumer, name, reason in stored.partition.decisions
        ),
        stored.partition.quality,
        stored.partition.provenance,
    )
    num_subgraphs = len(partition.subgraphs)
    stages = tuple(
        Stage(tuple(_read_group(g, num_subgraphs) for g in stage)) for stage in stored.schedule.stages
    )
    schedule = Schedule(partition, stages, stored.schedule.quality, stored.schedule.provenance)
    choices = {s: _read_choice(s, choice) for s, choice in stored.choices.items()}
    return Program(graph, partition, schedule, options, remarks=stored.remarks, choices=choices)


def _require_fitting(blocking: Blocking, subgraph: Subgraph) -> None:
    """That blocks are of the subgraph's only result: code is generated from them."""
    shapes = [v.shape for v in subgraph.outputs]
    fits = len(shapes) == 1 and len(shapes[0]) == len(blocking.block) and blocking.strip > 0
    fits = fits and all(0 < size <= extent for size, extent in zip(blocking.block, shapes[0], strict=True))
    if not fits or blocking.num_blocks(shapes[0]) > MAX_BLOCKS:
        raise FieldError(f"{str(blocking)[:80]} is no blocking of results {shapes}", ".partition.forms")


def _quality(quality: Quality) -> dict[str, Any]:
    return {
        "cost": quality.cost,
        "bound": quality.bound,
        "unit": quality.unit,
        "status": str(quality.status),
        **({} if quality.is_proven else {"is_proven": False}),
    }


def _provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        "planner": provenance.planner,
        "seed": provenance.seed,
        "num_evaluations": provenance.num_evaluations,
        "note": provenance.note,
    }


def _group(group: Group) -> dict[str, Any]:
    instances = [
        [i.subgraph_id, *(number for cut in (() if i.slice is None else i.slice.cuts) for number in cut)]
        for i in group.instances
    ]
    return {"instances": instances, "num_cores": group.num_cores}


def _read_group(stored: _GroupFields, num_subgraphs: int) -> Group:
    for numbers in stored.instances:
        if len(numbers) % 3 != 1 or numbers[0] >= num_subgraphs:
            raise FieldError(
                f"{list(numbers[:10])} is no subgraph (of {num_subgraphs}) with axes, starts and ends",
                ".schedule.stages",
            )
    instances = tuple(Instance(number, _read_slice(rest)) for number, *rest in stored.instances)
    return Group(instances, stored.num_cores)


def _read_slice(numbers: Sequence[int]) -> Slice | None:
    """Axis, start and end of each cut one after another."""
    places = iter(numbers)
    return slice_of_cuts(list(zip(places, places, places, strict=True)))


def _read_choice(signature: str, document: Mapping[str, str | int]) -> Choice:
    choice = Choice.from_json(document)
    if choice is None:
        raise FieldError("is no choice of a template", f".choices.{signature[:40]}")
    return choice
