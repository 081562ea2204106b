"""Partition and schedule of a program as plain values, and back onto the graph they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition.base import EdgeDecision, Partition, Reason, make_subgraph
from tilewright.planning import Provenance, Quality, Status
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


def decode_plan(document: Mapping[str, Any], graph: Graph, options: Options) -> Program:
    """The program that `encode_plan` described.

    Raises:
        ValueError, KeyError, IndexError, TypeError: the description does not fit the graph.
    """
    nodes = graph.nodes
    values = {v.name: v for v in graph.values()}
    described = document["partition"]
    subgraphs = tuple(
        make_subgraph(i, [nodes[_index(p)] for p in members], graph)
        for i, members in enumerate(described["subgraphs"])
    )
    decisions = tuple(
        EdgeDecision(nodes[_index(producer)], nodes[_index(consumer)], values[value], Reason(reason))
        for producer, consumer, value, reason in described["decisions"]
    )
    quality, provenance = _read_quality(described["quality"]), Provenance(**described["provenance"])
    partition = Partition(graph, subgraphs, decisions, quality, provenance)
    described = document["schedule"]
    stages = tuple(Stage(tuple(_read_group(g) for g in stage)) for stage in described["stages"])
    quality, provenance = _read_quality(described["quality"]), Provenance(**described["provenance"])
    schedule = Schedule(partition, stages, quality, provenance)
    found = {s: Choice.from_json(choice) for s, choice in document.get("choices", {}).items()}
    choices = {s: choice for s, choice in found.items() if choice is not None}
    remarks = tuple(document["remarks"])
    return Program(graph, partition, schedule, options, remarks=remarks, choices=choices)


def _quality(quality: Quality) -> dict[str, Any]:
    return {
        "cost": quality.cost,
        "bound": quality.bound,
        "unit": quality.unit,
        "status": str(quality.status),
    }


def _read_quality(document: Mapping[str, Any]) -> Quality:
    status = Status(document["status"])
    return Quality(float(document["cost"]), float(document["bound"]), str(document["unit"]), status)


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


def _read_group(document: Mapping[str, Any]) -> Group:
    instances = tuple(Instance(_index(number), _read_slice(rest)) for number, *rest in document["instances"])
    num_cores = document["num_cores"]
    return Group(instances, None if num_cores is None else _index(num_cores))


def _read_slice(numbers: Sequence[object]) -> Slice | None:
    """Axis, start and end of each cut one after another."""
    if len(numbers) % 3:
        raise ValueError(f"{numbers!r} are no axes with start and end")
    places = iter([_index(number) for number in numbers])
    return slice_of_cuts(list(zip(places, places, places, strict=True)))


def _index(number: object) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"{number!r} is no position")
    return number
