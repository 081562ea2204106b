"""`tilewright inspect`: what a file holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.output import JSON_OPTION, format_bytes, print_json, print_table

if TYPE_CHECKING:
    from tilewright.api import Model
    from tilewright.memory import MemoryPlan


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("inspect", rich_help_panel=panel)(inspect)


def inspect(
    model: Path = common.MODEL, shapes: str | None = common.SHAPES, as_json: bool = JSON_OPTION
) -> None:
    """Show operators, shapes, parameters, work and memory. Example: `tilewright inspect model.onnx`."""
    import tilewright as tw
    from tilewright.options import parse_shapes

    if common.is_artifact(model):
        compiled = tw.open(model)
        if as_json:
            print_json("inspect", {"file": str(model), "artifact": compiled.to_json()})
            return
        memory = compiled.memory
        rows = [
            ("compiled for", compiled.target),
            ("model sha256", compiled.model_sha256),
            ("inputs", ", ".join(map(str, compiled.get_inputs()))),
            ("outputs", ", ".join(map(str, compiled.get_outputs()))),
            ("kernels", str(len(compiled.kernels))),
        ]
        if memory is not None:
            rows.append(("activations", format_bytes(memory.peak_bytes)))
            rows.append(("constants", format_bytes(memory.constant_bytes)))
        print_table(("artifact", str(model)), rows)
        return
    loaded = tw.load(model, shapes=parse_shapes(shapes) if shapes else None)
    summary = loaded.summary()
    # What the activations need, without generating any code.
    planned = _planned_memory(loaded)
    if as_json:
        print_json(
            "inspect",
            {"file": str(model), "model": summary.to_json(), "planned_peak_bytes": planned.peak_bytes},
        )
        return
    rows = [*summary.rows(), ("activations", f"{format_bytes(planned.peak_bytes)} planned")]
    print_table(("", ""), rows)


def _planned_memory(model: Model) -> MemoryPlan:
    from tilewright.compiler import plan
    from tilewright.errors import InfeasibleMapping
    from tilewright.memory import MEMORY_PLANNERS, memory_problem
    from tilewright.options import Options
    from tilewright.planning import Infeasible

    options = Options()
    schedule = plan(model.graph, options).program.schedule
    planned = MEMORY_PLANNERS.get(options.memory).solve(memory_problem(schedule), options.search_budget)
    if isinstance(planned, Infeasible):
        raise InfeasibleMapping(str(planned))
    return planned
