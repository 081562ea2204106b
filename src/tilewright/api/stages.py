"""`tw.export_stages`: a schedule as a file for others, as plain stages or as onnxruntime reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilewright.api.compilation import compilation_request
from tilewright.api.models import Model, Shapes
from tilewright.arguments import checked
from tilewright.compiler import plan
from tilewright.errors import ModelRejected
from tilewright.explain import OnnxNode
from tilewright.files import write_output
from tilewright.frontend.onnx import Source
from tilewright.ir.graph import Node
from tilewright.options import Options
from tilewright.progress import PhaseClock, Progress
from tilewright.results import Result, Table, json_of
from tilewright.schedule.base import Schedule
from tilewright.target_ref import TargetRef
from tilewright.text.formatting import counted

StageFormat = Literal["stages", "ort-partition"]


@dataclass(frozen=True, slots=True)
class ExportedStages(Result):
    """A schedule that was written: to which file, how many stages of how many groups at most.

    `cost` is what the schedule costs by the model of its target, in `unit`.
    """

    path: Path
    format: StageFormat
    target: str
    scheduler: str
    num_stages: int
    max_groups: int
    num_operators: int
    cost: float
    unit: str

    def tables(self) -> Sequence[Table]:
        """Label and text of each line a person reads."""
        rows = (
            ("file", str(self.path)),
            ("schedule", f"{self.scheduler} for {self.target}: {self.cost:,.0f} {self.unit}"),
            ("stages", f"{self.num_stages}, of at most {counted(self.max_groups, 'group')}"),
        )
        return (Table(("", ""), rows),)


@checked
def export_stages(
    model: Model | Source,
    path: str | os.PathLike[str],
    to: StageFormat = "stages",
    *,
    target: str | TargetRef | None = None,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> ExportedStages:
    """Schedule a model for a target, and write its stages as JSON.

    `stages`: the operators of each group of each stage, in their order, by the names that they have after
    the passes. `ort-partition`: what onnxruntime reads as `session.node_partition_config_file`, a stream for
    each group of a stage, by the names that nodes have in the model's file; its own graph optimisations
    rename nodes and have to be off. The rest is as for `compile`.

    Raises:
        ModelRejected: nodes of the file have no names, which `ort-partition` needs.
        UsageError: the file cannot be written.
    """
    model, options = compilation_request(model, target, shapes, options, settings)
    if to == "ort-partition":
        _require_names(model.listed, model.name)
    program = plan(model.graph, options, PhaseClock(options.timeout_s, progress)).program
    schedule = program.schedule
    document = (
        _stages(schedule, str(options.target))
        if to == "stages"
        else _partition(model.graph.nodes, model.listed, schedule)
    )
    write_output(Path(path), (json.dumps(document, indent=1) + "\n").encode())
    return ExportedStages(
        Path(path),
        to,
        str(options.target),
        schedule.provenance.planner,
        len(schedule.stages),
        max((len(stage.groups) for stage in schedule.stages), default=0),
        len(schedule.partition.subgraphs),
        schedule.quality.cost,
        schedule.quality.unit,
    )


def _stages(schedule: Schedule, target: str) -> Mapping[str, Any]:
    """What runs at the same time, what one after another, and what it costs."""
    subgraphs = schedule.partition.subgraphs
    return {
        "format": "tilewright-stages",
        "version": 1,
        "target": target,
        "scheduler": schedule.provenance.planner,
        "cost": schedule.quality.cost,
        "bound": schedule.quality.bound,
        "bounds": [json_of(bound) for bound in schedule.quality.bounds],
        "unit": schedule.quality.unit,
        "stages": [
            {
                "groups": [
                    {
                        "num_cores": group.num_cores,
                        "kernels": [
                            {
                                "subgraph": instance.subgraph_id,
                                "instance": instance.index,
                                "operators": [node.name for node in subgraphs[instance.subgraph_id].nodes],
                            }
                            for instance in group.instances
                        ],
                    }
                    for group in stage.groups
                ]
            }
            for stage in schedule.stages
        ],
    }


def _partition(
    nodes: Sequence[Node], listed: Sequence[OnnxNode], schedule: Schedule
) -> Mapping[str, Sequence[object]]:
    """Streams of the file's nodes, all on the processor; what the passes left out runs with its readers."""
    places = _streams(schedule)
    found = {name: place for name, place in places.items() if name}
    for node in reversed(nodes):
        if node.name not in found:
            readers = [reader.name for value in node.results() for reader in value.users]
            found[node.name] = next((found[name] for name in readers if name in found), 0)
    streams: list[list[str]] = [[] for _ in range(max(found.values(), default=0) + 1)]
    for entry in listed:
        streams[found.get(entry.name, 0)].append(entry.name)
    used = [stream for stream in streams if stream]
    return {"type": "DeviceBasedPartitioner", "streams": used, "devices": ["0"] * len(used)}


def _streams(schedule: Schedule) -> Mapping[str, int]:
    """In which group of its stage each operator runs, by name; operators that merge run with the first."""
    places: dict[str, int] = {}
    for stage in schedule.stages:
        for place, group in enumerate(stage.groups):
            for instance in group.instances:
                for node in schedule.partition.subgraphs[instance.subgraph_id].nodes:
                    places[node.name] = place
    return places


def _require_names(listed: Sequence[OnnxNode], name: str) -> None:
    for number, node in enumerate(listed):
        if not node.is_named:
            raise ModelRejected(
                f"{name}: node {number} ({node.op_type}) has no name, and onnxruntime's partition lists "
                "nodes by name; name all nodes, or write --to stages."
            )
