"""What `tilewright simulate --batch` asks for: one batch, the best, or runs of several numbers of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tilewright.cli.flags import parsed_shapes
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.cli.simulated import Simulated
    from tilewright.frontend.onnx.inputs import Dimension
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Graph, Shape, Value

Wanted = int | tuple[int, ...] | Literal["auto"] | None
"""One number, several, the best one, or the model's own."""
Solve = Callable[["Graph"], "Simulated"]


def parsed_batch(text: str | None) -> Wanted:
    """What `--batch` says.

    Raises:
        UsageError: neither `auto` nor numbers above 0.
    """
    if text is None:
        return None
    if text == "auto":
        return "auto"
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= 1 << 20 for word in words):
        raise UsageError(
            f"--batch {text}: expected auto, a number of samples, at least 1, or several: 6,12,24."
        )
    numbers = tuple(int(word) for word in words)
    return numbers[0] if len(numbers) == 1 else numbers


@dataclass(frozen=True, slots=True)
class BatchedModel:
    """A model, and what `--batch` and `--shapes` say of it: open first axes of inputs count samples.

    `declared` are the dimensions of its inputs, None of unknown rank, without weights listed among them.
    `asked` is what `--batch` says, word for word.
    """

    path: Path
    asked: str | None
    shapes: Mapping[str, Shape]
    declared: Mapping[str, tuple[Dimension, ...] | None]

    @property
    def open_inputs(self) -> tuple[str, ...]:
        """The inputs whose first axis the model leaves open."""
        return tuple(
            name
            for name, dims in self.declared.items()
            if dims is None or (dims and not isinstance(dims[0], int))
        )

    def graph(self, samples: int | None) -> Graph:
        """The network after the usual passes, with its batch; None takes the shapes as they are given.

        Raises:
            UsageError: the model fixes its batch, or `--shapes` says another, or leaves axes open.
        """
        import tilewright as tw
        from tilewright.compiler import optimise
        from tilewright.options import Options

        fixed = dict(self.shapes) if samples is None else self._shapes_for(samples)
        return optimise(tw.load(self.path, shapes=fixed).graph, Options())[0]

    def batched(self, graph: Graph) -> tuple[Value, ...]:
        """The inputs of a network of this model whose first axis counts samples.

        Those whose first axis is open; of a model that fixes them all, the first that has an axis.
        """
        found = tuple(v for v in graph.inputs if v.name in self.open_inputs and v.shape)
        return found or tuple(v for v in graph.inputs if v.shape)[:1]

    def samples(self, graph: Graph) -> int:
        """What one cluster does at a time."""
        return next((value.shape[0] for value in self.batched(graph)), 1)

    def _shapes_for(self, samples: int) -> dict[str, Shape]:
        """`shapes` with so many samples, and shapes of the other inputs whose first axis is open."""
        is_number = parsed_batch(self.asked) == samples
        if not self.open_inputs:
            if is_number and any(dims[0] == samples for dims in self.declared.values() if dims):
                return dict(self.shapes)
            raise UsageError(
                f"{self.path}: --batch {self.asked}: the model fixes the first axis of every input; "
                "export it with its first axis open, or leave out --batch."
            )
        found = dict(self.shapes)
        for name in self.open_inputs:
            own = self.shapes.get(name)
            if own is None:
                continue
            if own[0] != 0 and not (is_number and own[0] == samples):
                raise UsageError(
                    f"--batch {self.asked} and --shapes {name}:{_text(own)} both say how many samples; "
                    f"give 0 for the batch: --shapes {name}:{_text((0, *own[1:]))}."
                )
            found[name] = (samples, *own[1:])
        symbols = self._symbols(found, samples)
        return found | {n: self._completed(n, symbols, samples) for n in self.open_inputs if n not in found}

    def _symbols(self, shapes: Mapping[str, Shape], samples: int) -> dict[str, int]:
        """What names of open axes stand for, as far as shapes and the batch say."""
        found: dict[str, int] = {}
        for name, shape in shapes.items():
            dims = self.declared.get(name) or ()
            found |= {d: n for d, n in zip(dims, shape, strict=False) if isinstance(d, str)}
        for name in self.open_inputs:
            found |= {d: samples for d in (self.declared[name] or ())[:1] if isinstance(d, str)}
        return found

    def _completed(self, name: str, symbols: Mapping[str, int], samples: int) -> Shape:
        """The shape of an input that `--shapes` does not name, if its other axes are known."""
        dims = self.declared[name]
        rest = [symbols.get(d) if isinstance(d, str) else d for d in (dims or ())[1:]]
        known = [extent for extent in rest if extent is not None]
        if dims is None or len(known) < len(rest):
            flag = "0x3x224x224" if dims is None else _text((0, *rest))
            raise UsageError(
                f"{self.path}: --batch {self.asked} fixes only the first axis of input {name!r}; give "
                f"the others, 0 stands for the batch: --shapes {name}:{flag}."
            )
        return (samples, *known)


def _text(shape: Sequence[int | None]) -> str:
    """A shape as `--shapes` takes it, with ? where nothing is known."""
    return "x".join("?" if extent is None else str(extent) for extent in shape)


def batched_model(path: Path, shapes: str | None, asked: str | None) -> BatchedModel:
    """Read what a model declares.

    Raises:
        TilewrightError: no such file, no model, or `shapes` that are none.
    """
    from tilewright.frontend.onnx.inputs import declaration
    from tilewright.frontend.onnx.read import open_model

    graph = open_model(path).model.graph
    weights = {weight.name for weight in (*graph.initializer, *(s.values for s in graph.sparse_initializer))}
    declared: dict[str, tuple[Dimension, ...] | None] = {}
    for value in graph.input:
        if value.name not in weights and (found := declaration(value, "input")) is not None:
            declared[value.name] = found.dims
    return BatchedModel(path, asked, parsed_shapes(shapes), declared)


def parsed_latency(max_latency_ms: float | None, wanted: Wanted) -> float | None:
    """What `--max-latency` says, in seconds.

    Raises:
        UsageError: no time, or there is but one batch, which it cannot choose.
    """
    if max_latency_ms is None:
        return None
    if not (isfinite(max_latency_ms) and max_latency_ms > 0):
        raise UsageError(f"--max-latency {max_latency_ms:g}: expected milliseconds, a number above 0.")
    if wanted is None or isinstance(wanted, int):
        raise UsageError(
            f"--max-latency {max_latency_ms:g}: chooses among several batches; add --batch auto, or several "
            "numbers: --batch 6,12,24."
        )
    return max_latency_ms / 1e3


class Batches:
    """Plans of one model for several batches. Seconds are remembered; networks are too large."""

    def __init__(self, model: BatchedModel, machine: Machine, solve: Solve, update: Any) -> None:
        self.model, self.machine = model, machine
        self.solve, self.update = solve, update
        self._seconds: dict[int, float] = {}

    def graph(self, samples: int) -> Graph:
        """The network with so many samples."""
        self.update(f"{samples} samples for each cluster", 0, 1)
        return self.model.graph(samples)

    def seconds(self, samples: int) -> float:
        """How long a batch takes as the recipe plans it.

        Raises:
            InfeasibleMapping: it does not fit main memory.
        """
        if samples not in self._seconds:
            self._seconds[samples] = self.solve(self.graph(samples)).plan.simulation.time_s
        return self._seconds[samples]

    def throughputs(self, max_latency_s: float | None) -> list[tuple[int, float]]:
        """Batches that are worth it, with the samples per second of all clusters.

        Raises:
            InfeasibleMapping: not even one sample fits.
            UsageError: one sample takes longer than `max_latency_s`.
        """
        from tilewright.errors import InfeasibleMapping
        from tilewright.partition import PARTITIONERS, PartitionProblem
        from tilewright.partition.analysis import Analysis
        from tilewright.planning import Budget, Infeasible
        from tilewright.targets.npu.batches import MOST_SAMPLES, candidates
        from tilewright.targets.npu.recipes import GRAPHTURBO

        graph = self.graph(MOST_SAMPLES)
        analysis = Analysis(graph)
        problem = PartitionProblem(graph, self.machine, known=analysis)
        partition = PARTITIONERS.get(GRAPHTURBO.partition).solve(problem, Budget())
        if isinstance(partition, Infeasible):
            raise InfeasibleMapping(str(partition))
        batched = [analysis.axes.class_of(v, 0) for v in self.model.batched(graph)]
        found: list[tuple[int, float]] = []
        for samples in candidates(partition, analysis.axes, batched, MOST_SAMPLES):
            try:
                time_s = self.seconds(samples)
            except InfeasibleMapping:
                if not found:
                    raise
                break
            if max_latency_s is not None and time_s > max_latency_s:
                if not found:
                    raise UsageError(
                        f"--max-latency {max_latency_s * 1e3:g}: a batch of one takes {time_s * 1e3:.3g} ms."
                    )
                break
            found.append((samples, samples * self.machine.num_clusters / time_s))
        return found
