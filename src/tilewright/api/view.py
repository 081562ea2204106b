"""`tw.view`: the graph of a compiled model as a page, grouped by kernel and coloured by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from tilewright.api.artifacts import open_or_compile
from tilewright.api.pages import model_report, page_path
from tilewright.api.profiling import profile_model
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.files import write_output
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.results import Result, about
from tilewright.text.formatting import counted


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
        kernels = counted(self.num_kernels, "kernel")
        return (f"{self.page}: {counted(self.num_nodes, 'node')} in {kernels}, with {times}",)


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
    """Write the report of a compiled model as one HTML page that needs no network.

    In its graph a box is a kernel with its nodes; it is the redder, the longer it takes: by estimate, or
    measured for `measure_s` seconds. The graph zooms, finds nodes by name, and says of each arc why it was
    cut there. Below are times of kernels, if measured beside their limits, memory over time, and why edges
    were fused or cut.

    Raises:
        UsageError: the page cannot be written, or what is to be measured is no code for this processor.
    """
    path = page_path(output)
    if isinstance(model, CompiledModel):
        name, compiled = model.program.graph.name, model
    else:
        name, compiled = Path(model).name, open_or_compile(Path(model), options or Options(), progress)
    profile = None
    if measure_s:
        profile = profile_model(compiled, feed=feed, duration_s=measure_s, progress=progress)
    write_output(path, model_report(compiled, name, profile).encode())
    return ModelView(
        page=path,
        num_nodes=len(compiled.program.graph.nodes),
        num_kernels=len(compiled.kernels),
        is_measured=profile is not None,
        model_sha256=compiled.model_sha256,
        target=compiled.target,
    )
