"""`tw.compare`: do two ways to run a model agree?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.api.artifacts import asked_of_artifacts, for_models
from tilewright.api.compilation import compile_model
from tilewright.api.inputs import Feed, feed_of
from tilewright.api.models import Model, load
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.artifact.option_check import SERVED
from tilewright.benchmark.engines import PEERS, make_engine
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.hardware.presets import preset_names
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.report.comparison import (
    LayerComparison,
    TensorDifference,
    Tolerance,
    compare_layers,
    first_difference,
)
from tilewright.results import Result, Table, about, in_json
from tilewright.specialise.opened import open_compiled
from tilewright.target_ref import TargetRef
from tilewright.targets import TARGETS
from tilewright.text.formatting import counted, format_shape

SHOWN_LAYERS = 12


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a file and what runs it. `engine` is a target, a peer, or `artifact`."""

    path: Path
    engine: str

    @classmethod
    def parse(cls, text: str, target: TargetRef, other: Path | None = None) -> Side:
        """Read FILE, ENGINE (on the other side's file) or FILE@ENGINE.

        Raises:
            UsageError: an unknown engine, or one without a file.
        """
        engines = (*TARGETS.names(), *PEERS)
        if text in engines or (other is not None and text in preset_names()):
            if other is None:
                raise UsageError(f"{text}: give the model first: tilewright compare MODEL {text}.")
            return cls(other, text)
        file, at, engine = text.rpartition("@")
        if at and not Path(text).exists():
            if engine not in engines and not TargetRef.parse(engine).is_known_machine:
                known = f"{', '.join(engines)}, and described machines"
                raise UsageError(f"{text}: unknown engine {engine!r}; known are {known}.")
            return cls(Path(file), engine)
        path = Path(text)
        return cls(path, "artifact" if is_artifact(path) else str(target))

    def __str__(self) -> str:
        return str(self.path) if self.engine == "artifact" else f"{self.path}@{self.engine}"


@dataclass(frozen=True, slots=True)
class ComparisonResult(Result):
    """Differences between two ways to run a model."""

    a: str
    b: str
    rtol: float
    atol: float
    outputs: tuple[TensorDifference, ...]
    between: LayerComparison | None = field(metadata=about(hidden=True))
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))

    @in_json
    def layers(self) -> tuple[TensorDifference, ...] | None:
        """What passes between kernels, in the order it is made; null where that was not asked for."""
        return None if self.between is None else self.between.tensors

    @in_json
    def changed_kernels(self) -> tuple[str, ...] | None:
        """Kernels that had to change so that what passes between them could be seen."""
        return None if self.between is None else self.between.changed

    @property
    def differing(self) -> tuple[TensorDifference, ...]:
        """Tensors that differ by more than allowed, the first made first."""
        return tuple(t for t in self.tensors if not t.ok)

    @property
    def tensors(self) -> tuple[TensorDifference, ...]:
        """Everything that was compared."""
        return (*(self.layers or ()), *self.outputs)

    @in_json
    def ok(self) -> bool:
        """Whether every difference is allowed."""
        return first_difference(self.tensors) is None

    def tables(self) -> Sequence[Table]:
        """Between kernels the least exact tensors; all outputs."""
        outputs = differences_table(self.outputs, f"{self.a} and {self.b}")
        if self.between is None:
            return (outputs,)
        title = f"between {counted(self.between.num_kernels, 'kernel')}, the least exact"
        return (differences_table(_worst(self.between.tensors), title), outputs)


@checked
def compare_models(
    a: str | Path,
    b: str | Path = "interpreter",
    *,
    feed: Mapping[str, Array] | str | Path | None = None,
    layers: bool = False,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    options: Options | None = None,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Compare two engines, targets or artifacts, output by output.

    A side is FILE, or FILE@ENGINE; the second may be only an ENGINE: a target, onnxruntime, openvino. A
    `feed` are arrays or an .npz file; without one inputs are random, by the seed of the options. With
    `layers` the first is also compared with the interpreter wherever one kernel hands to the next.

    Raises:
        UsageError: an unknown engine, sides of different outputs, or layers beside another engine.
    """
    options, update = options or Options(), progress or (lambda *_: None)
    tolerance = Tolerance(rtol, atol)
    left = Side.parse(str(a), options.target)
    right = Side.parse(str(b), options.target, left.path)
    if layers and str(b) != "interpreter":
        raise UsageError(f"layers are compared with the interpreter; leave out {str(b)!r}.")
    runner = _Runner(options, feed, (left.path, right.path))
    names, mine = runner.outputs(left)
    _, theirs = runner.outputs(right)
    if len(mine) != len(theirs):
        raise UsageError(f"{left} has {len(mine)} outputs, {right} has {len(theirs)}.")
    tensors = tuple(
        TensorDifference.of(n, x, y, tolerance) for n, x, y in zip(names, mine, theirs, strict=True)
    )
    between = None
    if layers:
        update("comparing what passes between kernels", 0, 0)
        subject = runner.compiled(left)
        between = compare_layers(subject.program, subject.facts, runner.feed(left), tolerance)
    return ComparisonResult(
        a=str(left),
        b=str(right),
        rtol=rtol,
        atol=atol,
        outputs=tensors,
        between=between,
        model_sha256=runner.model_sha256(left),
        target=left.engine,
    )


def _worst(tensors: Sequence[TensorDifference]) -> list[TensorDifference]:
    """The least exact ones, in the order in which they are made."""
    by_error = sorted(tensors, key=lambda t: -(t.max_difference / t.allowed if t.allowed else 0.0))
    chosen = set(by_error[:SHOWN_LAYERS])
    return [t for t in tensors if t in chosen]


def differences_table(tensors: Iterable[TensorDifference], title: str) -> Table:
    """A row for each tensor that was compared."""
    heads = ("tensor", "shape", "largest difference", "largest value", "allowed", "")
    rows = tuple(
        (
            t.name,
            format_shape(t.shape),
            f"{t.max_difference:.3g}",
            f"{t.scale:.3g}",
            f"{t.allowed:.3g}",
            "ok" if t.ok else "DIFFERS",
        )
        for t in tensors
    )
    return Table(heads, rows, title, (2, 3, 4), (3, 1))


class _Runner:
    """Runs sides on the same inputs; a file is compiled or opened once for each engine."""

    def __init__(self, options: Options, feed: Feed, files: Sequence[Path]) -> None:
        self._options = options
        self._asked = asked_of_artifacts(options, files) - {"target"}  # which the sides say
        self._for_models = for_models(options, files)
        self._given = feed
        self._feed: Mapping[str, Array] | None = None
        self._compiled: dict[Side, CompiledModel] = {}
        self._loaded: dict[Path, Model] = {}

    def outputs(self, side: Side) -> tuple[tuple[str, ...], list[Array]]:
        """Names and values of the outputs."""
        feed = self.feed(side)
        if side.engine in PEERS:
            if is_artifact(side.path):
                raise UsageError(f"{side.path}: {side.engine} needs the ONNX file, not an artifact.")
            threads = self._options.threads or 1
            engine = make_engine(side.engine, str(side.path), threads, self._options.fixed_shapes)
            return tuple(o.name for o in self._model(side.path).graph.outputs), engine.run(feed)
        if side.engine == "null":
            raise UsageError("null runs nothing: compare with interpreter.")
        compiled = self.compiled(side)
        return tuple(o.name for o in compiled.get_outputs()), compiled.run(None, feed)

    def compiled(self, side: Side) -> CompiledModel:
        """The compiled model of a side."""
        if side not in self._compiled:
            if not is_artifact(side.path):
                model = self._model(side.path)
                self._compiled[side] = compile_model(model, side.engine, options=self._for_models)
            elif side.engine == "artifact":
                self._compiled[side] = open_compiled(side.path, self._options, self._asked)
            else:
                self._compiled[side] = self._again(side)
        return self._compiled[side]

    def _again(self, side: Side) -> CompiledModel:
        """The program of an artifact on another target."""
        opened = open_compiled(side.path, self._options, self._asked & SERVED)
        model = Model(opened.program.graph, opened.model_sha256, str(side.path))
        return compile_model(model, side.engine, threads=self._options.threads)

    def model_sha256(self, side: Side) -> str:
        """Which model a side runs."""
        if is_artifact(side.path):
            return self.compiled(side).model_sha256
        return self._model(side.path).sha256

    def feed(self, side: Side) -> Mapping[str, Array]:
        """The inputs, made for the first side that asks."""
        if self._feed is None:
            self._feed = feed_of(self._given, self._inputs(side), self._options.seed)
        return self._feed

    def _inputs(self, side: Side) -> Sequence[TensorInfo]:
        if is_artifact(side.path):
            return self.compiled(side).get_inputs()
        return self._model(side.path).summary().inputs

    def _model(self, path: Path) -> Model:
        if path not in self._loaded:
            self._loaded[path] = load(path, shapes=self._options.fixed_shapes)
        return self._loaded[path]
