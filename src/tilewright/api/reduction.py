"""`tw.reduce`: the smallest part of a model that still fails as the whole one does."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright.api.compilation import compilation_request, compile_model
from tilewright.api.inputs import feed_of, random_feed, write_arrays
from tilewright.api.models import Shapes, load, survey
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import TilewrightError, UsageError
from tilewright.files import is_artifact, require_other_file, write_output
from tilewright.frontend.onnx import Source
from tilewright.frontend.onnx.read import embedded_model
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph
from tilewright.options import Options, parse_shapes
from tilewright.progress import Progress
from tilewright.report.comparison import TensorDifference, Tolerance, first_difference
from tilewright.results import Result, Table, about
from tilewright.text.formatting import counted

T = TypeVar("T")

DIFFERS = "differs"
"""The kind of failure where a model runs and its numbers are not those of the reference."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a model fails. Failures of one `kind` are the same: numbers that differ, or errors of one type from
    one function.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """An error of loading, compiling or running."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else ""
        text = " ".join(str(error).split()).removesuffix(" (in the given model)")
        return cls(f"{type(error).__name__} in {place}", text)


@dataclass(frozen=True, slots=True)
class ReduceResult(Result):
    """The smallest part of a model that was seen to fail as the whole one does."""

    model: str
    failure: Failure
    num_nodes: int = field(metadata=about("Of the whole model."))
    nodes: tuple[str, ...] = field(metadata=about("Those that are left."))
    operators: tuple[str, ...]
    num_trials: int = field(metadata=about("Parts of the model that were tried."))
    is_minimal: bool = field(
        metadata=about("Whether it no longer fails without any one of its nodes; else trials ran out.")
    )
    output: Path | None = field(metadata=about("Where it was written."))
    inputs: Path | None = field(metadata=about("Where the arrays were written on which it fails."))
    proto: onnx.ModelProto = field(metadata=about(hidden=True))
    feed: Mapping[str, Array] = field(metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """The nodes that are left."""
        rows = tuple(zip(self.nodes, self.operators, strict=True))
        return (
            Table(("node", "operator"), rows, f"{len(rows)} of {counted(self.num_nodes, 'node')} still fail"),
        )

    def lines(self) -> Sequence[str]:
        """How it fails, and what was tried."""
        end = "no more nodes can be left out" if self.is_minimal else "more --trials may find less"
        return (
            ": ".join(filter(None, ("fails", self.failure.kind, self.failure.text))),
            f"{counted(self.num_trials, 'part')} were tried; {end}",
        )


@checked
def reduce_model(
    model: Source,
    output: str | Path | None = None,
    *,
    feed: Mapping[str, Array] | str | Path | None = None,
    command: str | None = None,
    trials: int = 500,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> ReduceResult:
    """Leave out nodes of a failing model as long as it fails in the same way.

    A model fails if it raises an error while it is loaded, compiled or run, or if an output differs from the
    interpreter's in float64 by more than allowed. With `command` it fails as the command does, which is run
    with `{}` replaced by the part's file, each time in a process of its own: use it for crashes. What the
    nodes that are left read from others is fed as it was in the whole model. `output` is written as ONNX,
    with the arrays beside it as .npz.

    Raises:
        UsageError: the model does not fail or is an artifact, or a file cannot be written.
        ModelRejected: the file is malformed, so that nothing can be cut out of it.
    """
    if isinstance(model, str | os.PathLike) and is_artifact(Path(model)):
        raise UsageError(f"{os.fspath(model)}: is compiled already; give the ONNX file.")
    if output is not None:
        require_other_file(Path(output), model, feed)
        require_other_file(Path(output).with_suffix(".npz"), feed)
    if isinstance(shapes, str):
        shapes = parse_shapes(shapes)
    known, _ = survey(model, shapes or (None if options is None else options.shapes))
    _, options = compilation_request(known, None, shapes, options, settings)
    specs = [TensorInfo.of(value) for value in known.graph.inputs]
    arrays = dict(feed_of(feed, specs, options.seed))
    values = {value.name: value for value in known.graph.values()}
    excerpts = Excerpts(model, values)
    attempt = _Command(command) if command else _Attempt(options, Tolerance(rtol, atol))
    trier = _Trier(excerpts, attempt, _recorded(known.graph, arrays, options.seed), trials, progress)
    whole = list(range(len(excerpts.nodes)))
    failure = trier.failure(whole)
    if failure is None:
        raise UsageError(f"{known.name}: does not fail; give the inputs on which it does (-i), or a command.")
    left = minimal(whole, lambda part: trier.fails(part, failure))
    proto = excerpts.part(left)
    inputs = trier.feed(proto)
    nodes = [excerpts.nodes[number] for number in left]
    path = None if output is None else Path(output)
    if path is not None:
        write_output(path, proto.SerializeToString())
        write_arrays(path.with_suffix(".npz"), inputs)
    return ReduceResult(
        model=known.name,
        failure=trier.last or failure,
        num_nodes=len(whole),
        nodes=tuple(node.name or node.output[0] for node in nodes),
        operators=tuple(node.op_type for node in nodes),
        num_trials=trier.num_trials,
        is_minimal=not trier.is_exhausted,
        output=path,
        inputs=None if path is None else path.with_suffix(".npz"),
        proto=proto,
        feed=inputs,
    )


def _recorded(graph: Graph, feed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Every value of a graph that is not constant, as the interpreter has it; random where that fails."""
    passing = [value for value in graph.values() if not value.is_constant]
    try:
        return run_graph(graph, feed, taps=[value.name for value in passing])
    except TilewrightError:
        return {**random_feed([TensorInfo.of(value) for value in passing], seed), **feed}


def minimal(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of failing items that fails, and no longer without any one of them (delta debugging).

    >>> minimal(range(100), lambda part: 17 in part and 60 in part)
    [17, 60]
    """
    left, num_parts = list(items), 2
    while len(left) > 1:
        size = -(-len(left) // num_parts)
        parts = [left[start : start + size] for start in range(0, len(left), size)]
        rests = [[item for other in parts if other is not part for item in other] for part in parts]
        smaller = next((part for part in parts if fails(part)), None)
        if smaller is not None:
            left, num_parts = smaller, 2
            continue
        smaller = next((rest for rest in rests if len(parts) > 2 and fails(rest)), None)
        if smaller is not None:
            left, num_parts = smaller, max(num_parts - 1, 2)
        elif size == 1:
            break
        else:
            num_parts = min(2 * num_parts, len(left))
    return left


class _Attempt:
    """Loads, compiles and runs a part here, and compares it with the reference."""

    def __init__(self, options: Options, tolerance: Tolerance) -> None:
        self._options = dataclasses.replace(options, shapes={})
        self._tolerance = tolerance

    def __call__(self, proto: onnx.ModelProto, feed: Mapping[str, Array]) -> Failure | None:
        try:
            model = load(proto)
            with compile_model(model, options=self._options) as compiled:
                got = compiled.run(None, feed)
            expected = run_graph(model.graph, feed, dtype=DType.FLOAT64)
        except Exception as error:  # whatever it is that is looked for
            return Failure.of(error)
        names = [output.name for output in compiled.get_outputs()]
        first = first_difference(
            [
                TensorDifference.of(name, array, expected[name], self._tolerance)
                for name, array in zip(names, got, strict=True)
            ]
        )
        if first is None:
            return None
        text = f"output {first.name!r} by {first.max_difference:.3g} (allowed {first.allowed:.3g})"
        return Failure(DIFFERS, text)


class _Command:
    """Runs a command on the file of a part; whatever ends it but the exit code 0 is a failure."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"command {command!r}: {error}.") from error
        if not any("{}" in word for word in self._words):
            raise UsageError(f"command {command!r}: write {{}} where the file of the model stands.")

    def __call__(self, proto: onnx.ModelProto, feed: Mapping[str, Array]) -> Failure | None:
        with tempfile.TemporaryDirectory(prefix="tilewright-reduce-") as folder:
            path = Path(folder) / "part.onnx"
            path.write_bytes(proto.SerializeToString())
            write_arrays(path.with_suffix(".npz"), feed)
            words = [word.replace("{}", str(path)) for word in self._words]
            try:
                done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
            except OSError as error:
                raise UsageError(f"command {words[0]!r}: cannot be run ({error.strerror}).") from error
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return Failure(f"exit code {done.returncode}", said[-1] if said else "") if done.returncode else None


class _Trier:
    """Tries parts of a model, each once, until no more trials may be made."""

    def __init__(
        self,
        excerpts: Excerpts,
        attempt: Callable[[onnx.ModelProto, Mapping[str, Array]], Failure | None],
        recorded: Mapping[str, Array],
        max_trials: int,
        progress: Progress | None,
    ) -> None:
        self._excerpts, self._attempt, self._recorded = excerpts, attempt, recorded
        self._max_trials, self._progress = max_trials, progress
        self._known: dict[tuple[int, ...], bool] = {}
        self.num_trials = 0
        self.last: Failure | None = None
        self.is_exhausted = False

    def failure(self, part: Sequence[int]) -> Failure | None:
        """How a part fails; None where it does not, or cannot be cut out."""
        try:
            proto = self._excerpts.part(part)
        except UsageError:
            return None
        return self._attempt(proto, self.feed(proto))

    def fails(self, part: Sequence[int], failure: Failure) -> bool:
        """Whether a part fails in the same way, as far as is known when trials have run out."""
        key = tuple(part)
        if key not in self._known:
            if self.num_trials >= self._max_trials:
                self.is_exhausted = True
                return False
            self.num_trials += 1
            if self._progress is not None:
                self._progress(counted(len(part), "node"), self.num_trials, self._max_trials)
            found = self.failure(part)
            self._known[key] = found is not None and found.kind == failure.kind
            if self._known[key]:
                self.last = found
        return self._known[key]

    def feed(self, proto: onnx.ModelProto) -> dict[str, Array]:
        """What the inputs of a part are in the whole model."""
        return {info.name: self._recorded[info.name] for info in proto.graph.input}


class Excerpts:
    """Parts of one model, each with the opsets, functions and initializers that it needs.

    `values` are those of the model as it was imported, by name: what a part reads that it does not compute
    becomes an initializer where it is a constant of the model, else an input of the shape that it has there.
    """

    def __init__(self, source: Source, values: Mapping[str, Value]) -> None:
        self._model = embedded_model(source)
        self._values = values
        self._constants = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self.nodes: Sequence[NodeProto] = tuple(self._model.graph.node)
        """The nodes of the whole model."""

    def part(self, numbers: Sequence[int]) -> ModelProto:
        """The nodes of these numbers, which rise. Results that none of them reads are outputs, and outputs of
        the model stay such.

        Raises:
            UsageError: the shape of what they read is unknown.
        """
        nodes = [self.nodes[number] for number in numbers]
        made = {name for node in nodes for name in node.output if name}
        read = dict.fromkeys(name for node in nodes for name in _names_read(node))
        kept = {output.name for output in self._model.graph.output}
        initializers, inputs = [], []
        for name in read:
            if name not in made:
                constant = self._constant(name)
                if constant is None:
                    inputs.append(self._info(name))
                else:
                    initializers.append(constant)
        given = [name for name in sorted(made) if name not in read or name in kept]
        outputs = [self._info(n) if n in self._values else ValueInfoProto(name=n) for n in given]
        graph = helper.make_graph(nodes, self._model.graph.name or "part", inputs, outputs, initializers)
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _constant(self, name: str) -> TensorProto | None:
        """What a name stands for where that is a constant of the model."""
        value = self._values.get(name)
        if name in self._constants:
            return self._constants[name]
        return None if value is None or value.data is None else numpy_helper.from_array(value.data, name)

    def _info(self, name: str) -> ValueInfoProto:
        value = self._values.get(name)
        if value is None:
            raise UsageError(f"{name!r}: its shape is not known, so the model cannot be cut there.")
        elem_type = helper.np_dtype_to_tensor_dtype(value.dtype.numpy)
        return helper.make_tensor_value_info(name, elem_type, value.shape)


def _names_read(node: NodeProto) -> Iterator[str]:
    """Names that a node or its bodies read."""
    yield from filter(None, node.input)
    for body in body_graphs(node):
        yield from free_names(body)
