"""`tw.inspect`: what a model's file or an artifact holds, and the memory that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tilewright.api.models import Model, ModelSummary, Shapes, load
from tilewright.arguments import checked
from tilewright.artifact import Sizes, origin_of
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import MeasuredError, OpenTensorInfo, TensorInfo
from tilewright.compiler import plan
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.options import Options, shapes_text
from tilewright.results import Result, Table, about
from tilewright.specialise.opened import SavedShapes, open_compiled
from tilewright.steps import LevelInfo, MemoryInfo
from tilewright.target_ref import CPU, TargetRef
from tilewright.targets import find_target
from tilewright.text.formatting import counted, format_bytes, format_count


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What an artifact says about its model."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    num_nodes: int


@dataclass(frozen=True, slots=True)
class StoredShapes:
    """What an artifact says about its model that was compiled for several sets of shapes."""

    inputs: tuple[OpenTensorInfo, ...]
    outputs: tuple[OpenTensorInfo, ...]
    sets: tuple[Mapping[str, tuple[int, ...]], ...] = field(
        metadata=about("Shapes of the inputs, of each set.")
    )
    sets_beside: tuple[str, ...] = field(
        metadata=about("Other shapes, which run by the code for sets with more rows.")
    )


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """Planned memory."""

    peak_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    scratch_bytes: int
    levels: tuple[LevelInfo, ...] = field(metadata=about("Innermost first; an arena is the only one."))


@dataclass(frozen=True, slots=True)
class Inspection(Result):
    """What a model or an artifact holds."""

    file: Path
    format: Literal["onnx", "tilewright"]
    model: ModelSummary | StoredModel | StoredShapes
    planned_peak_bytes: int | None
    planned_levels: tuple[LevelInfo, ...] | None = field(
        metadata=about("Levels of memory that the target fills, innermost first.")
    )
    memory: MemorySummary | None
    num_kernels: int | None
    algorithms: Mapping[str, int] | None = field(metadata=about("Kernels by the template that made them."))
    error: MeasuredError | None = field(metadata=about("Measured when the artifact was made."))
    isas: tuple[str, ...] | None = field(metadata=about("Instruction sets of the artifact's machine code."))
    signed_by: str | None = field(metadata=about("Public key of the signer of the artifact's code, in hex."))
    is_trusted: bool | None = field(metadata=about("Whether the artifact's code runs here."))
    sizes: Sizes | None = field(metadata=about("Of the artifact."))
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))
    tool_version: str = field(default="", metadata=about(hidden=True))
    remarks: tuple[str, ...] = field(default=(), metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """Facts; of a model also how many operators of each type."""
        if not isinstance(self.model, ModelSummary):
            return (Table(("artifact", str(self.file)), tuple(self._artifact_rows(self.model))),)
        model = self.model
        counts = tuple(model.operator_counts.items())
        title = counted(model.num_nodes, "operator")
        return (Table(("", ""), self._model_rows(model)), Table(("operator", "nodes"), counts, title, (1,)))

    def _model_rows(self, model: ModelSummary) -> tuple[tuple[str, str], ...]:
        work = f"{format_count(model.flop)}FLOP, {format_count(model.macs)}MAC (multiply-accumulates)"
        return (
            ("model", model.name),
            ("sha256", model.sha256),
            ("inputs", ", ".join(map(str, model.inputs)) or "none"),
            ("outputs", ", ".join(map(str, model.outputs))),
            ("parameters", f"{model.num_parameters:,}, {format_bytes(model.parameter_bytes)}"),
            ("work", work),
            *level_rows(self.planned_levels or ()),
        )

    def _artifact_rows(self, model: StoredModel | StoredShapes) -> list[tuple[str, str]]:
        algorithms = ", ".join(f"{count} {name}" for name, count in (self.algorithms or {}).items())
        rows = [
            ("compiled for", f"{self.target}, by tilewright {self.tool_version}"),
            ("model sha256", _digits(self.model_sha256)),
            ("inputs", ", ".join(map(str, model.inputs))),
            ("outputs", ", ".join(map(str, model.outputs))),
        ]
        sizes = self.sizes
        assert sizes is not None
        weights = format_bytes(sizes.weight_bytes)
        rows.append(("file", f"{format_bytes(sizes.file_bytes)}, of which weights are {weights}"))
        if isinstance(model, StoredShapes):
            rows += [
                ("code for", f"{shapes_text(shapes)}, {format_bytes(size_bytes)}")
                for shapes, size_bytes in zip(model.sets, sizes.set_bytes, strict=False)
            ]
            rows += [("also runs", shapes) for shapes in model.sets_beside]
        else:
            rows += [
                ("operators", str(model.num_nodes)),
                ("kernels", str(self.num_kernels)),
                ("algorithms", algorithms or "none"),
                ("largest error", "not measured" if self.error is None else str(self.error)),
            ]
        if self.isas:
            trust = "trusted" if self.is_trusted else "not trusted here"
            signer = "no key" if self.signed_by is None else f"{_digits(self.signed_by)}, {trust}"
            codes = zip(self.isas, sizes.code_bytes, strict=False)
            code = ", ".join(f"{isa} ({format_bytes(size_bytes)})" for isa, size_bytes in codes)
            rows += [("machine code", f"for {code}"), ("signed by", signer)]
        if self.memory is not None:
            rows += level_rows(self.memory.levels)
            rows.append(("constants", format_bytes(self.memory.constant_bytes)))
        return rows


def _digits(key: str) -> str:
    """So many digits of a digest or key as tell it from others; `to_json` has all."""
    return f"{key[:16]}..."


@checked
def inspect_file(
    path: str | Path, target: str | TargetRef | None = None, *, shapes: Shapes | None = None
) -> Inspection:
    """Operators, shapes, parameters, work and memory of a model or an artifact, without generating code.

    Memory is what the target places: the processor, or one that is named.

    Raises:
        UsageError: no such file or target, or shapes or a target for an artifact.
        ModelRejected: the model cannot be loaded.
        ArtifactCorrupt: the artifact cannot be opened.
    """
    file = Path(path)
    if not is_artifact(file):
        named = None if target is None else TargetRef.parse(target)
        return _of_model(file, load(file, shapes=shapes), named)
    if target is not None:
        raise UsageError(f"{file}: an artifact's target is fixed; leave out --target.")
    # Trusted for a look: nothing of its code is run.
    return _of_artifact(
        file,
        open_compiled(file, Options(trust=True, shapes={n: tuple(s) for n, s in (shapes or {}).items()})),
    )


def level_rows(levels: Sequence[LevelInfo]) -> list[tuple[str, str]]:
    """What each level of memory holds, in a line."""
    if len(levels) == 1:
        return [("activations", f"{format_bytes(levels[0].peak_bytes)} planned")]
    rows = []
    for level in levels:
        size = format_bytes(level.peak_bytes)
        if level.capacity_bytes is not None:
            size = f"{size} of {format_bytes(level.capacity_bytes)}"
        buffers = counted(level.num_buffers, "buffer")
        rows.append((f"{level.name} memory", f"{size}, {buffers}"))
    return rows


def _of_model(file: Path, model: Model, target: TargetRef | None) -> Inspection:
    planned = _planned_memory(model, target)
    return Inspection(
        file=file,
        format="onnx",
        model=model.summary(),
        planned_peak_bytes=None if planned is None else planned.peak_bytes,
        planned_levels=None if planned is None else planned.levels,
        memory=None,
        num_kernels=None,
        algorithms=None,
        error=None,
        isas=None,
        signed_by=None,
        is_trusted=None,
        sizes=None,
        model_sha256=model.sha256,
        target="any" if target is None else str(target),
    )


def _of_artifact(file: Path, compiled: CompiledModel) -> Inspection:
    memory = compiled.memory
    summary = None
    if memory is not None:
        summary = MemorySummary(
            memory.peak_bytes,
            memory.lower_bound_bytes,
            memory.constant_bytes,
            memory.scratch_bytes,
            memory.levels,
        )
    origin = origin_of(file)
    inputs, outputs = tuple(compiled.get_inputs()), tuple(compiled.get_outputs())
    is_of_several = isinstance(compiled, SavedShapes)
    if isinstance(compiled, SavedShapes):
        of_all = [OpenTensorInfo(info.name, info.dtype, info.shape) for info in (*inputs, *outputs)]
        held: StoredModel | StoredShapes = StoredShapes(
            tuple(of_all[: len(inputs)]),
            tuple(of_all[len(inputs) :]),
            compiled.sets,
            tuple(map(shapes_text, compiled.sets_beside)),
        )
    else:
        held = StoredModel(inputs, outputs, len(compiled.program.graph.nodes))
    return Inspection(
        file=file,
        format="tilewright",
        model=held,
        planned_peak_bytes=None if memory is None else memory.peak_bytes,
        planned_levels=None if memory is None else memory.levels,
        memory=summary,
        num_kernels=None if is_of_several else len(compiled.kernels),
        algorithms=None if is_of_several else compiled.algorithms,
        error=compiled.error,
        isas=origin.isas,
        signed_by=origin.signed_by,
        is_trusted=origin.is_trusted,
        sizes=origin.sizes,
        model_sha256=compiled.model_sha256,
        target=compiled.target,
        tool_version=compiled.facts.tool_version,
        remarks=tuple(compiled.remarks),
    )


def _planned_memory(model: Model, target: TargetRef | None) -> MemoryInfo | None:
    """Where a target places what lies between kernels; nothing is generated."""
    options = Options(target=target or CPU)
    program = plan(model.graph, options).program
    return find_target(options.target).backend(program.graph, options).planned_memory(program)
