"""`tilewright inspect`: what a file holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.compile_verb import memory_json
from tilewright.cli.flags import MODEL, SHAPES, add_verb, parsed_shapes
from tilewright.cli.output import JSON_OPTION, format_bytes, format_count, hint, print_json, print_table, say
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.api import Model
    from tilewright.memory import MemoryPlan


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "inspect", inspect, panel)


def inspect(model: Path = MODEL, shapes: str | None = SHAPES, as_json: bool = JSON_OPTION) -> None:
    """Show operators, shapes, parameters, work and memory of a model or an artifact.

    Example: `tilewright inspect model.onnx`.
    """
    fixed = parsed_shapes(shapes)
    if common.is_artifact(model):
        if fixed:
            raise UsageError(f"{model}: an artifact's shapes are fixed; leave out --shapes.")
        _artifact(model, as_json)
    else:
        _onnx(model, fixed, as_json)


def _onnx(path: Path, shapes: Mapping[str, tuple[int, ...]], as_json: bool) -> None:
    import tilewright as tw

    loaded = tw.load(path, shapes=shapes)
    summary = loaded.summary()
    planned = _planned_memory(loaded)
    if as_json:
        document = {
            **common.model_facts(loaded.sha256, "any"),
            "file": path,
            "format": "onnx",
            "model": summary.to_json(),
            "planned_peak_bytes": planned.peak_bytes,
            "memory": None,
            "num_kernels": None,
            "algorithms": None,
            "error": None,
        }
        print_json("inspect", document)
        return
    parameters = f"{summary.num_parameters:,}, {format_bytes(summary.parameter_bytes)}"
    facts = [
        ("model", summary.name),
        ("sha256", summary.sha256),
        ("inputs", ", ".join(map(str, summary.inputs)) or "none"),
        ("outputs", ", ".join(map(str, summary.outputs))),
        ("parameters", parameters),
        ("work", f"{format_count(summary.flop)}FLOP, {format_count(summary.macs)}MAC (multiply-accumulates)"),
        ("activations", f"{format_bytes(planned.peak_bytes)} at their peak, before a target chooses layouts"),
    ]
    print_table(("", ""), facts)
    say("")
    print_table(
        ("operator", "nodes"),
        list(summary.operator_counts.items()),
        title=f"{summary.num_nodes} operators",
        right=(1,),
    )
    hint(f"next: tilewright check {path}, tilewright compile {path}")


def _artifact(path: Path, as_json: bool) -> None:
    import tilewright as tw

    compiled = tw.open(path)
    memory = compiled.memory
    if as_json:
        inputs, outputs = compiled.get_inputs(), compiled.get_outputs()
        document = {
            **common.model_facts(compiled.model_sha256, compiled.target),
            "file": path,
            "format": "tilewright",
            "model": {
                "inputs": [i.to_json() for i in inputs],
                "outputs": [o.to_json() for o in outputs],
                "num_nodes": len(compiled.program.graph.nodes),
            },
            "planned_peak_bytes": None if memory is None else memory.peak_bytes,
            "memory": memory_json(compiled),
            "num_kernels": len(compiled.kernels),
            "algorithms": compiled.algorithms,
            "error": None if compiled.error is None else dataclasses.asdict(compiled.error),
        }
        print_json("inspect", document)
        return
    rows = [
        ("compiled for", f"{compiled.target}, by tilewright {compiled.facts.tool_version}"),
        ("model sha256", compiled.model_sha256),
        ("inputs", ", ".join(map(str, compiled.get_inputs()))),
        ("outputs", ", ".join(map(str, compiled.get_outputs()))),
        ("operators", str(len(compiled.program.graph.nodes))),
        ("kernels", str(len(compiled.kernels))),
        ("algorithms", common.algorithms_text(compiled)),
        ("largest error", "not measured" if compiled.error is None else str(compiled.error)),
    ]
    if memory is not None:
        rows.append(("activations", f"{format_bytes(memory.peak_bytes)} planned"))
        rows.append(("constants", format_bytes(memory.constant_bytes)))
    print_table(("artifact", str(path)), rows)
    for remark in compiled.remarks:
        hint(remark)


def _planned_memory(model: Model) -> MemoryPlan:
    """What the activations need where the model is compiled for this processor; nothing is generated."""
    from tilewright.compiler import plan
    from tilewright.options import Options

    planned = plan(model.graph, Options()).program.memory
    assert planned is not None  # the processor's target places what lies between kernels
    return planned
