"""`tw.view`: the graph of a compiled model as a page, grouped by kernel and coloured by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api.artifacts import open_or_compile
from tilewright.api.profiling import profile_model
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.errors import UsageError
from tilewright.files import write_output
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.report.figure import folded, page
from tilewright.report.graph_view import graph_section
from tilewright.results import Result, about

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ModelView(Result):
    """A page that shows the graph of a compiled model."""

    page: Path
    num_nodes: int = field(metadata=about("Of the optimised graph."))
    num_kernels: int
    is_measured: bool = field(metadata=about("Whether times of kernels are measured, or estimates."))
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))

    def lines(self) -> Sequence[str]:
        """What was written where."""
        times = "measured times" if self.is_measured else "estimated times"
        return (f"{self.page}: {self.num_nodes} nodes in {self.num_kernels} kernels, with {times}",)


@checked
def view_model(
    model: CompiledModel | str | Path,
    output: str | Path,
    *,
    measure_s: float = 0.0,
    feed: Mapping[str, Array] | str | Path | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> ModelView:
    """Write the graph of a compiled model as one HTML page that needs no network.

    A box is a kernel with its nodes; it is the redder, the longer it takes: by estimate, or measured for
    `measure_s` seconds. The page zooms, finds nodes by name, and says of each arc why it was cut there.

    Raises:
        UsageError: the page cannot be written, or what is to be measured is no code for this processor.
    """
    path = Path(output)
    if path.suffix != ".html":
        raise UsageError(f"{path}: give a name that ends in .html.")
    if isinstance(model, CompiledModel):
        name, compiled = model.program.graph.name, model
    else:
        name, compiled = Path(model).name, open_or_compile(Path(model), options or Options(), progress)
    measured = None
    if measure_s:
        profile = profile_model(compiled, feed=feed, duration_s=measure_s, progress=progress)
        measured = {kernel.id: kernel.median_ns for kernel in profile.kernels}
    report = compiled.report()
    graph = graph_section(compiled.program, compiled.kernels, compiled.explain().edges, measured)
    tables = [folded(table.title, [table.html()]) for table in report.tables]
    text = page(f"{name} on {compiled.target}", [graph, *tables], follows_system=True)
    write_output(path, text.encode())
    return ModelView(
        page=path,
        num_nodes=len(compiled.program.graph.nodes),
        num_kernels=len(compiled.kernels),
        is_measured=measured is not None,
        model_sha256=compiled.model_sha256,
        target=compiled.target,
    )
