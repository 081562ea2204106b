"""`tw.inspect`: what a model's file or an artifact holds, and the memory that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tilewright.api.artifacts import open_artifact
from tilewright.api.models import Model, ModelSummary, Shapes, load
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import MeasuredError, TensorInfo
from tilewright.compiler import plan
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.formatting import format_bytes, format_count
from tilewright.options import Options
from tilewright.results import Result, Table, about

if TYPE_CHECKING:
    from tilewright.memory import MemoryPlan


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What an artifact says about its model."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    num_nodes: int


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """Planned memory."""

    peak_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection(Result):
    """What a model or an artifact holds."""

    file: Path
    format: Literal["onnx", "tilewright"]
    model: ModelSummary | StoredModel
    planned_peak_bytes: int | None
    memory: MemorySummary | None
    num_kernels: int | None
    algorithms: Mapping[str, int] | None = field(metadata=about("Kernels by the template that made them."))
    error: MeasuredError | None = field(metadata=about("Measured when the artifact was made."))
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))
    tool_version: str = field(default="", metadata=about(hidden=True))
    remarks: tuple[str, ...] = field(default=(), metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """Facts; of a model also how many operators of each type."""
        if isinstance(self.model, StoredModel):
            return (Table(("artifact", str(self.file)), tuple(self._artifact_rows(self.model))),)
        model = self.model
        counts = tuple(model.operator_counts.items())
        title = f"{model.num_nodes} operators"
        return (
            Table(("", ""), self._model_rows(model)),
            Table(("operator", "nodes"), counts, title, (1,)),
        )

    def _model_rows(self, model: ModelSummary) -> tuple[tuple[str, str], ...]:
        peak = format_bytes(self.planned_peak_bytes or 0)
        work = f"{format_count(model.flop)}FLOP, {format_count(model.macs)}MAC (multiply-accumulates)"
        return (
            ("model", model.name),
            ("sha256", model.sha256),
            ("inputs", ", ".join(map(str, model.inputs)) or "none"),
            ("outputs", ", ".join(map(str, model.outputs))),
            ("parameters", f"{model.num_parameters:,}, {format_bytes(model.parameter_bytes)}"),
            ("work", work),
            ("activations", f"{peak} at their peak, before a target chooses layouts"),
        )

    def _artifact_rows(self, model: StoredModel) -> list[tuple[str, str]]:
        algorithms = ", ".join(f"{count} {name}" for name, count in (self.algorithms or {}).items())
        rows = [
            ("compiled for", f"{self.target}, by tilewright {self.tool_version}"),
            ("model sha256", self.model_sha256),
            ("inputs", ", ".join(map(str, model.inputs))),
            ("outputs", ", ".join(map(str, model.outputs))),
            ("operators", str(model.num_nodes)),
            ("kernels", str(self.num_kernels)),
            ("algorithms", algorithms or "none"),
            ("largest error", "not measured" if self.error is None else str(self.error)),
        ]
        if self.memory is not None:
            rows.append(("activations", f"{format_bytes(self.memory.peak_bytes)} planned"))
            rows.append(("constants", format_bytes(self.memory.constant_bytes)))
        return rows


@checked
def inspect_file(path: str | Path, *, shapes: Shapes | None = None) -> Inspection:
    """Operators, shapes, parameters, work and memory of a model or an artifact, without generating code.

    Raises:
        UsageError: no such file, or shapes for an artifact.
        ModelRejected: the model cannot be loaded.
        ArtifactCorrupt: the artifact cannot be opened.
    """
    file = Path(path)
    if not is_artifact(file):
        return _of_model(file, load(file, shapes=shapes))
    if shapes:
        raise UsageError(f"{file}: an artifact's shapes are fixed; leave out --shapes.")
    return _of_artifact(file, open_artifact(file))


def _of_model(file: Path, model: Model) -> Inspection:
    return Inspection(
        file=file,
        format="onnx",
        model=model.summary(),
        planned_peak_bytes=_planned_memory(model).peak_bytes,
        memory=None,
        num_kernels=None,
        algorithms=None,
        error=None,
        model_sha256=model.sha256,
        target="any",
    )


def _of_artifact(file: Path, compiled: CompiledModel) -> Inspection:
    memory = compiled.memory
    summary = None
    if memory is not None:
        summary = MemorySummary(
            memory.peak_bytes, memory.lower_bound_bytes, memory.constant_bytes, memory.scratch_bytes
        )
    inputs, outputs = tuple(compiled.get_inputs()), tuple(compiled.get_outputs())
    return Inspection(
        file=file,
        format="tilewright",
        model=StoredModel(inputs, outputs, len(compiled.program.graph.nodes)),
        planned_peak_bytes=None if memory is None else memory.peak_bytes,
        memory=summary,
        num_kernels=len(compiled.kernels),
        algorithms=compiled.algorithms,
        error=compiled.error,
        model_sha256=compiled.model_sha256,
        target=compiled.target,
        tool_version=compiled.facts.tool_version,
        remarks=tuple(compiled.remarks),
    )


def _planned_memory(model: Model) -> MemoryPlan:
    """What the activations need where the model is compiled for this processor; nothing is generated."""
    planned = plan(model.graph, Options()).program.memory
    assert planned is not None, "the processor's target places what lies between kernels"
    return planned
