"""`tilewright compare`: do two ways to run a model agree?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli import common
from tilewright.cli.flags import INPUTS, CompileFlags, add_verb
from tilewright.cli.output import JSON_OPTION, format_shape, hint, print_json, print_table, progress, say
from tilewright.errors import NumericMismatch, UsageError

if TYPE_CHECKING:
    from tilewright.compiled import CompiledModel, TensorInfo
    from tilewright.options import Options
    from tilewright.report.comparison import Array, TensorDifference

PEERS = ("onnxruntime", "openvino")
SHOWN_LAYERS = 12


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "compare", compare, panel)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a file and what runs it. `engine` is a target, a peer, or `artifact`."""

    path: Path
    engine: str

    @classmethod
    def parse(cls, text: str, target: str, other: Path | None) -> Side:
        """Read FILE, ENGINE (on the other side's file) or FILE@ENGINE."""
        from tilewright.targets import TARGETS

        engines = (*TARGETS.names(), *PEERS)
        if text in engines:
            if other is None:
                raise UsageError(f"{text}: give the model first: tilewright compare MODEL {text}.")
            return cls(other, text)
        file, at, engine = text.rpartition("@")
        if at and not Path(text).exists():
            if engine not in engines:
                raise UsageError(f"{text}: unknown engine {engine!r}; known are {', '.join(engines)}.")
            return cls(Path(file), engine)
        path = Path(text)
        return cls(path, "artifact" if common.is_artifact(path) else target)

    def __str__(self) -> str:
        return str(self.path) if self.engine == "artifact" else f"{self.path}@{self.engine}"


def compare(
    flags: CompileFlags,
    a: str = typer.Argument(metavar="A", help="FILE, or FILE@ENGINE: an ONNX model or an artifact."),
    b: str = typer.Argument(
        "interpreter", metavar="B", help="The same, or only ENGINE: interpreter, cpu, onnxruntime, openvino."
    ),
    inputs: Path | None = INPUTS,
    layers: bool = typer.Option(
        False, "--layers", help="Compare A with the interpreter wherever one kernel hands to the next."
    ),
    rtol: float = typer.Option(1e-4, "--rtol", help="Allowed difference over the tensor's largest value."),
    atol: float = typer.Option(1e-6, "--atol", help="Allowed difference, absolute."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Compare two engines, targets or artifacts, output by output; exit code 4 if they differ.

    Example: `tilewright compare model.onnx onnxruntime`, `tilewright compare model.tw --layers`.
    """
    from tilewright.report.comparison import Tolerance, compare_layers, first_difference

    tolerance = Tolerance(rtol, atol)
    options = flags.options()
    left = Side.parse(a, options.target, None)
    right = Side.parse(b, options.target, left.path)
    if layers and b != "interpreter":
        raise UsageError(f"--layers compares with the interpreter; leave out {b!r}.")
    found = None
    with progress("comparing") as update:
        runner = _Runner(options, options.seed, inputs)
        names, mine = runner.outputs(left)
        _, theirs = runner.outputs(right)
        if len(mine) != len(theirs):
            raise UsageError(f"{left} has {len(mine)} outputs, {right} has {len(theirs)}.")
        tensors = _differences(names, mine, theirs, tolerance)
        if layers:
            update("comparing what passes between kernels")
            compiled = runner.compiled(left)
            found = compare_layers(compiled, runner.feed(left), tolerance)
    sides = (str(left), str(right))
    shown = tensors if found is None else (*found.tensors, *tensors)
    bad = [t for t in shown if not t.ok]
    if as_json:
        document: dict[str, Any] = {
            **common.model_facts(runner.model_sha256(left), left.engine),
            "a": sides[0],
            "b": sides[1],
            "ok": not bad,
            "rtol": rtol,
            "atol": atol,
            "outputs": [t.to_json() for t in tensors],
            "layers": None if found is None else [t.to_json() for t in found.tensors],
            "changed_kernels": None if found is None else list(found.changed),
        }
        print_json("compare", document)
    else:
        if found is not None:
            _print(_worst(found.tensors), f"between {found.num_kernels} kernels, the least exact")
            if found.changed:
                hint(f"{len(found.changed)} kernels had to change for this: {found.changed[0]!r} ...")
            say("")
        _print(tensors, f"{sides[0]} and {sides[1]}")
    first = first_difference(shown)
    if first is not None:
        raise NumericMismatch(
            f"{first.name!r}: {sides[0]} and {sides[1]} differ by {first.max_difference:.3g} (allowed "
            f"{first.allowed:.3g}); {len(bad)} of {len(shown)} tensors differ. "
            + ("It is the first." if layers else "Try --layers to find where it begins.")
        )


def _differences(
    names: tuple[str, ...], a: list[Array], b: list[Array], tolerance: Any
) -> tuple[TensorDifference, ...]:
    from tilewright.report.comparison import TensorDifference

    return tuple(TensorDifference.of(name, x, y, tolerance) for name, x, y in zip(names, a, b, strict=True))


def _worst(tensors: tuple[TensorDifference, ...]) -> list[TensorDifference]:
    """The least exact ones, in the order in which they are made."""
    by_error = sorted(tensors, key=lambda t: -(t.max_difference / t.allowed if t.allowed else 0.0))
    chosen = set(by_error[:SHOWN_LAYERS])
    return [t for t in tensors if t in chosen]


def _print(tensors: tuple[TensorDifference, ...] | list[TensorDifference], title: str) -> None:
    print_table(
        ("tensor", "shape", "largest difference", "largest value", "allowed", ""),
        [
            (
                t.name,
                format_shape(t.shape),
                f"{t.max_difference:.3g}",
                f"{t.scale:.3g}",
                f"{t.allowed:.3g}",
                "ok" if t.ok else "DIFFERS",
            )
            for t in tensors
        ],
        title=title,
        right=(2, 3, 4),
    )


class _Runner:
    """Runs sides on the same inputs; a file is compiled or opened once for each engine."""

    def __init__(self, options: Options, seed: int, inputs: Path | None) -> None:
        self._options = options
        self._seed = seed
        self._inputs = inputs
        self._feed: Mapping[str, Array] | None = None
        self._compiled: dict[Side, CompiledModel] = {}
        self._loaded: dict[Path, Any] = {}

    def outputs(self, side: Side) -> tuple[tuple[str, ...], list[Array]]:
        """Names and values of the outputs."""
        feed = self.feed(side)
        if side.engine in PEERS:
            if common.is_artifact(side.path):
                raise UsageError(f"{side.path}: {side.engine} needs the ONNX file, not an artifact.")
            from tilewright.benchmark.engines import make_engine

            threads = self._options.threads or 1
            engine = make_engine(side.engine, str(side.path), threads, dict(self._options.shapes))
            return tuple(o.name for o in self._model(side.path).graph.outputs), engine.run(feed)
        if side.engine == "null":
            raise UsageError("null runs nothing: compare with interpreter.")
        compiled = self.compiled(side)
        return tuple(o.name for o in compiled.get_outputs()), compiled.run(None, feed)

    def compiled(self, side: Side) -> CompiledModel:
        """The compiled model of a side."""
        import tilewright as tw

        if side not in self._compiled:
            if not common.is_artifact(side.path):
                model = self._model(side.path)
                self._compiled[side] = tw.compile(model, side.engine, options=self._options)
            elif side.engine == "artifact":
                self._compiled[side] = common.open_or_compile(side.path, self._options, lambda *_: None)
            else:
                self._compiled[side] = self._again(side)
        return self._compiled[side]

    def _again(self, side: Side) -> CompiledModel:
        """The program of an artifact on another target."""
        import tilewright as tw
        from tilewright.api import Model

        opened = tw.open(side.path)
        model = Model(opened.program.graph, opened.model_sha256, str(side.path))
        return tw.compile(model, side.engine, threads=self._options.threads)

    def model_sha256(self, side: Side) -> str:
        """Which model a side runs."""
        if common.is_artifact(side.path):
            return self.compiled(side).model_sha256
        return str(self._model(side.path).sha256)

    def feed(self, side: Side) -> Mapping[str, Array]:
        """The inputs, made for the first side that asks."""
        if self._feed is None:
            self._feed = common.inputs_or_random(self._inputs, self._specs(side), self._seed)
        return self._feed

    def _specs(self, side: Side) -> list[TensorInfo]:
        if common.is_artifact(side.path):
            return self.compiled(side).get_inputs()
        return list(self._model(side.path).summary().inputs)

    def _model(self, path: Path) -> Any:
        import tilewright as tw

        if path not in self._loaded:
            self._loaded[path] = tw.load(path, shapes=dict(self._options.shapes))
        return self._loaded[path]
