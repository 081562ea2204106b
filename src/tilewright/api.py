"""The public functions: `tw.load`, `tw.check`, `tw.compile`, `tw.open`; a stand-in for InferenceSession."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tilewright
from tilewright.arguments import argument, checked
from tilewright.compiled import Body, CompiledFacts, CompiledModel, TensorInfo
from tilewright.compiler import Compilation, Tuning, compile_graph, plan
from tilewright.errors import UsageError, error_context
from tilewright.explain import OnnxNode, origins_of, with_loaded_nodes
from tilewright.frontend.onnx import Opened, Source, import_model, open_model
from tilewright.frontend.onnx.protos import bounded_messages
from tilewright.ir.derive import flops, macs
from tilewright.ir.graph import Graph
from tilewright.ir.text import print_graph
from tilewright.options import Options, parse_bytes, parse_shapes
from tilewright.parallel import beside
from tilewright.passes.expand_recurrent import num_steps_of
from tilewright.planning import UNLIMITED, Budget
from tilewright.printable import html_text, printable
from tilewright.progress import PhaseClock, Progress
from tilewright.targets import TARGETS
from tilewright.targets.base import Support, TuningTarget
from tilewright.tuning import NO_CHOICES

if TYPE_CHECKING:
    from tilewright.embed import ExportedModel

__all__ = [
    "CheckReport",
    "InferenceSession",
    "Model",
    "ModelSummary",
    "OperatorSupport",
    "Progress",
    "check",
    "compile_model",
    "load",
    "open_artifact",
    "tune_model",
]

DEFAULT_TUNING_BUDGET = Budget(UNLIMITED, 60.0)

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Counts of a model as it was loaded. Multiply-accumulates and operations are of one inference."""

    name: str
    sha256: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operator_counts: Mapping[str, int]
    num_parameters: int
    parameter_bytes: int
    macs: int
    flop: int

    @property
    def num_nodes(self) -> int:
        """Operators in the graph."""
        return sum(self.operator_counts.values())

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each line a person reads."""
        counts = ", ".join(f"{count} {name}" for name, count in self.operator_counts.items())
        return (
            ("model", self.name),
            ("sha256", self.sha256),
            ("inputs", ", ".join(map(str, self.inputs)) or "none"),
            ("outputs", ", ".join(map(str, self.outputs))),
            ("operators", f"{self.num_nodes}: {counts}" if counts else "none"),
            ("parameters", f"{self.num_parameters:,} in {self.parameter_bytes / 1e6:.1f} MB"),
            ("work", f"{self.macs / 1e9:.3f} G multiply-accumulates"),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "inputs": [i.to_json() for i in self.inputs],
            "outputs": [o.to_json() for o in self.outputs],
            "operator_counts": dict(self.operator_counts),
            "num_nodes": self.num_nodes,
            "num_parameters": self.num_parameters,
            "parameter_bytes": self.parameter_bytes,
            "macs": self.macs,
            "flop": self.flop,
        }

    def __str__(self) -> str:
        return "\n".join(f"{label:>10}  {printable(text)}" for label, text in self.rows())


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: its graph, where it came from, and the nodes that its file lists."""

    graph: Graph
    sha256: str
    name: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    listed: tuple[OnnxNode, ...] = ()

    def summary(self) -> ModelSummary:
        """Operators, parameters and work."""
        counts = Counter(node.op_type for node in self.graph.nodes)
        constants = self.graph.initializers
        return ModelSummary(
            name=self.name,
            sha256=self.sha256,
            inputs=tuple(TensorInfo.of(v) for v in self.graph.inputs),
            outputs=tuple(TensorInfo.of(v) for v in self.graph.outputs),
            operator_counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
            num_parameters=sum(v.num_elements for v in constants),
            parameter_bytes=sum(v.size_bytes for v in constants),
            macs=sum(macs(node) for node in self.graph.nodes),
            flop=sum(flops(node) for node in self.graph.nodes),
        )

    def to_json(self) -> dict[str, Any]:
        """The summary as plain values."""
        return self.summary().to_json()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {len(self.graph.nodes)} nodes)"

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th>{html_text(label)}</th><td>{html_text(text)}</td></tr>"
            for label, text in self.summary().rows()
        )
        return f"<table>{''.join(cells)}</table>"


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """What a target makes of the operators of one type that it treats alike. `nodes` are their names."""

    op_type: str
    opset: int
    verdict: str  # native, host, unsupported
    reason: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        reason = f": {self.reason}" if self.reason else ""
        return printable(f"{self.op_type} {self.nodes[0]!r}{more}: {self.verdict}{reason}")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Which operators of a model a target runs. `ok` when it runs all of them, on the host or not."""

    model: str
    target: str
    operators: tuple[OperatorSupport, ...]

    @property
    def ok(self) -> bool:
        """Whether compiling would not be refused for an operator."""
        return not self.unsupported

    @property
    def unsupported(self) -> tuple[OperatorSupport, ...]:
        """Operators that the target declines."""
        return tuple(o for o in self.operators if o.verdict == "unsupported")

    @property
    def on_host(self) -> tuple[OperatorSupport, ...]:
        """Operators that run through the reference implementation in Python."""
        return tuple(o for o in self.operators if o.verdict == "host")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": self.model,
            "target": self.target,
            "ok": self.ok,
            "operators": [dataclasses.asdict(o) for o in self.operators],
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.operators))

    def _repr_html_(self) -> str:
        head = "<tr><th>operator</th><th>nodes</th><th>verdict</th><th>reason</th></tr>"
        cells = (
            f"<tr><td>{html_text(o.op_type)}</td><td>{len(o.nodes)}</td><td>{o.verdict}</td>"
            f"<td>{html_text(o.reason)}</td></tr>"
            for o in self.operators
        )
        return f"<table>{head}{''.join(cells)}</table>"


@checked
def load(source: Any, example_inputs: Sequence[Any] | None = None, *, shapes: Shapes | None = None) -> Model:
    """Load a model: an ONNX file, its bytes, a `ModelProto`, or a `torch.nn.Module` with example inputs.

    `shapes` fixes the inputs whose sizes the model leaves open.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: a valid model that uses something this version does not run.
        UsageError: no such file, open dimensions, or `shapes` that do not fit.
    """
    fixed = {name: tuple(int(d) for d in shape) for name, shape in (shapes or {}).items()}
    if example_inputs is not None:
        from tilewright.frontend.torch import load_torch

        graph = load_torch(source, example_inputs)
        return Model(graph, _graph_digest(graph), type(source).__name__)
    opened = open_model(argument("model", source, Source))
    with error_context(f"in {opened.origin.label}"), bounded_messages():
        listed = _listed(opened)
    if opened.locations:
        graph = import_model(opened, shapes=fixed)
        digest = opened.sha256()
    else:
        # Hashing lets go of the interpreter.
        digest, graph = beside(opened.sha256, lambda: import_model(opened, shapes=fixed))
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else graph.name
    return Model(graph, digest, str(name), fixed, listed)


@checked
def check(model: Model | Source, target: str = "cpu", *, shapes: Shapes | None = None) -> CheckReport:
    """Ask a target about every operator of a model, without compiling it.

    Operators are those of the model, before any pass; a recurrent layer counts as the steps it is written as.

    Raises:
        ModelRejected: the model itself cannot be loaded. An unsupported operator raises nothing.
    """
    model = _as_model(model, shapes)
    asked = TARGETS.get(target)
    found: dict[tuple[str, int, str, str], list[str]] = {}
    for node in model.graph.nodes:
        support = asked.supports(node)
        steps = num_steps_of(model.graph, node) if support.is_on_host else None
        if steps is not None:
            support = Support.yes(f"written as its {steps} steps")
        verdict = "unsupported" if not support else "host" if support.is_on_host else "native"
        found.setdefault((node.op_type, node.opset, verdict, support.reason), []).append(node.name)
    operators = tuple(OperatorSupport(*key, tuple(names)) for key, names in found.items())
    return CheckReport(model.name, target, operators)


@checked
def compile_model(
    model: Model | Source,
    target: str | None = None,
    *,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> CompiledModel:
    """Compile a model for a target.

    `settings` are fields of `Options` (`hint="latency"`, `budget="60s"`, `threads=2`, ...); `options` gives
    all of them at once. `progress` is called with what is being done, how much of it is done, and how much
    there is.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: an operator that the target does not run.
        UsageError: an unknown setting or one that makes no sense.
        BudgetExceeded: a limit on time or memory would be passed.
    """
    model, options = _request(model, target, shapes, options, settings)
    return _compiled(model, options, compile_graph(model.graph, options, progress))


@checked
def tune_model(
    model: Model | Source,
    target: str | None = None,
    *,
    afresh: bool = False,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> CompiledModel:
    """Compile a model with the kernels that are the fastest here: measure for `budget`, 60 s if not given.

    The search goes on where the last one for this model ended; `afresh` measures all again. What it finds is
    in the result's `tuning`, and kept: later compilations of the model use it. The rest is as for `compile`.

    Raises:
        UsageError: a target without anything to measure; as `compile`.
    """
    model, options = _request(model, target, shapes, options, settings)
    if not isinstance(TARGETS.get(options.target), TuningTarget):
        raise UsageError(f"target {options.target}: nothing can be measured there; tune for cpu.")
    if options.budget is None:
        options = dataclasses.replace(options, budget=DEFAULT_TUNING_BUDGET)
    tuning: Tuning = "afresh" if afresh else "anew"
    return _compiled(model, options, compile_graph(model.graph, options, progress, tuning=tuning))


@checked
def open_artifact(
    path: str | os.PathLike[str], threads: int | None = None, trust: bool = False
) -> CompiledModel:
    """Open an artifact that `CompiledModel.save` wrote.

    Its machine code is used if it is for this processor and this machine made it, or `trust` says so;
    otherwise it is generated again here from the stored program, and `remarks` says so.

    Raises:
        UsageError: no such file.
        ArtifactCorrupt: not an artifact, damaged, or made by a newer version.
    """
    from tilewright.artifact import read_artifact

    return read_artifact(Path(path), num_threads=threads, trust=trust)


@checked
def export_model(
    model: CompiledModel | Model | Source,
    folder: str | os.PathLike[str],
    isa: str = "host",
    *,
    name: str | None = None,
    force: bool = False,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> ExportedModel:
    """Write a model as an object file, a C header, a file of weights and an example into a folder.

    `isa` is host, avx2, avx512 or neon (aarch64): any machine's code can be written on any. `name` is that of
    the files and of the C function; the model's by default. Files of an earlier export are replaced, all or
    none; others, and those that were edited since, only with `force`. The rest is as for `compile`.

    Raises:
        UsageError: an unknown instruction set, no such folder, a name that is too long, or a file in the way.
        UnsupportedOp: an operator without generated code.
    """
    from tilewright.embed import export_object
    from tilewright.targets.cpu.isa import isa_for_export

    record = isa_for_export(isa)
    if isinstance(model, CompiledModel):
        program, digest, stem = model.program, model.model_sha256, "model"
    else:
        model, options = _request(model, "cpu", shapes, options, settings)
        clock = PhaseClock(options.timeout_s, progress)
        program, digest = plan(model.graph, options, clock).program, model.sha256
        stem = Path(model.name).stem
    # Measured choices are another machine's.
    program = dataclasses.replace(program, choices=NO_CHOICES)
    return export_object(
        program,
        record,
        Path(folder),
        name=name or stem,
        model_sha256=digest,
        force=force,
        progress=progress,
    )


class InferenceSession:
    """For code written against onnxruntime: `InferenceSession(path).run(None, feed)`.

    Takes a model or an artifact. Of `sess_options` only `intra_op_num_threads` is read; `providers` are
    ignored, for there is one.
    """

    @checked
    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
    ) -> None:
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        is_artifact = isinstance(path_or_bytes, str | os.PathLike) and str(path_or_bytes).endswith(".tw")
        self.compiled = (
            open_artifact(Path(os.fspath(path_or_bytes)), threads)  # type: ignore[arg-type]  # checked above
            if is_artifact
            else compile_model(path_or_bytes, threads=threads)
        )

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Outputs in the order of `output_names`, all of them for None."""
        return self.compiled.run(output_names, input_feed)

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input."""
        return self.compiled.get_inputs()

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output."""
        return self.compiled.get_outputs()

    def get_providers(self) -> list[str]:
        """What runs the model."""
        return ["TilewrightExecutionProvider"]


def _request(
    model: Model | Source,
    target: str | None,
    shapes: Shapes | str | None,
    options: Options | None,
    settings: dict[str, Any],
) -> tuple[Model, Options]:
    """The model loaded, and the options that it is to be compiled with."""
    if isinstance(shapes, str):
        shapes = parse_shapes(shapes)
    if options is None:
        options = _options(settings)
    elif settings:
        raise UsageError(f"{next(iter(settings))}: give it in options, or no options.")
    model = _as_model(model, shapes or options.shapes)
    return model, dataclasses.replace(options, target=target or options.target, shapes=dict(model.shapes))


def _compiled(model: Model, options: Options, compilation: Compilation) -> CompiledModel:
    code, executable = compilation.code, compilation.executable
    program = compilation.program
    origins = origins_of(model.graph, program.graph, compilation.passes)
    facts = CompiledFacts(
        target=options.target,
        tool_version=tilewright.__version__,
        model_sha256=model.sha256,
        options=options,
        inputs=tuple(TensorInfo.of(v) for v in program.graph.inputs),
        outputs=tuple(TensorInfo.of(v) for v in program.graph.outputs),
        steps=compilation.steps,
        memory=None if code is None else code.memory_info,
        origins=with_loaded_nodes(origins, model.listed, model.graph),
    )

    def start(num_threads: int | None) -> Any:
        return executable if code is None else code.load(num_threads)

    body = Body(lambda: program, lambda: getattr(code, "image", None), start)
    return CompiledModel(
        facts,
        body,
        remarks=program.remarks,
        phase_s=compilation.phase_s,
        num_threads=options.num_threads,
        tuning=compilation.tuning,
    )


def _listed(opened: Opened) -> tuple[OnnxNode, ...]:
    """Nodes of the file, named as the frontend names them: by their first result if they have no name."""
    return tuple(
        OnnxNode(n.name or next(filter(None, n.output), n.op_type), n.op_type, tuple(n.output))
        for n in opened.model.graph.node
    )


def _as_model(model: Model | Source, shapes: Shapes | None) -> Model:
    if not isinstance(model, Model):
        return load(model, shapes=shapes)
    for name, shape in (shapes or {}).items():
        known = {v.name: v.shape for v in model.graph.inputs}.get(name)
        if known != tuple(shape):
            raise UsageError(
                f"shapes: {name!r} is {known} in the loaded model; give shapes to `load` instead."
            )
    return model


def _options(settings: dict[str, Any]) -> Options:
    known = [f.name for f in dataclasses.fields(Options)]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}."
            raise UsageError(f"unknown setting {name!r}: {hint}")
    if isinstance(settings.get("budget"), str):
        settings["budget"] = Budget.parse(settings["budget"])
    if isinstance(settings.get("max_memory_bytes"), str):
        settings["max_memory_bytes"] = parse_bytes(settings["max_memory_bytes"])
    return Options(**settings)


def _graph_digest(graph: Graph) -> str:
    import hashlib

    return hashlib.sha256(print_graph(graph).encode()).hexdigest()
