"""How many samples each cluster of a simulated machine does at a time: what is asked, and runs of any number.

A run of any number of samples is planned for that number, padded to the next power of two, or put together
from plans for powers of two, each of which keeps its samples for an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING, Literal

from tilewright.api.models import Model, as_model
from tilewright.compiler import optimise
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.frontend.onnx import Source
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.results import about, in_json
from tilewright.targets.base import SimulatingTarget
from tilewright.text.formatting import counted

if TYPE_CHECKING:
    from tilewright.frontend.onnx.inputs import Dimension
    from tilewright.ir.graph import Graph, Shape, Value

Wanted = int | tuple[int, ...] | Literal["auto"] | None
"""One number, several, the best one, or the model's own."""

Way = Literal["direct", "padded", "buckets"]
_MAX_SAMPLES = 1 << 20


def wanted_batch(batch: int | str | Sequence[int] | None) -> Wanted:
    """What a batch as people give it asks for: `auto`, 6, or several: `6,12,24`.

    Raises:
        UsageError: neither `auto` nor numbers above 0.

    >>> wanted_batch("6,12"), wanted_batch(6), wanted_batch("auto")
    ((6, 12), 6, 'auto')
    """
    if batch is None:
        return None
    if batch == "auto":
        return "auto"
    words = [word.strip() for word in batch_text(batch).split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= _MAX_SAMPLES for word in words):
        raise UsageError(
            f"batch {batch_text(batch)}: expected auto, a number of samples, at least 1, or several: 6,12,24."
        )
    numbers = tuple(int(word) for word in words)
    return numbers[0] if len(numbers) == 1 else numbers


def batch_text(batch: int | str | Sequence[int]) -> str:
    """A batch as the command line writes it."""
    return str(batch) if isinstance(batch, int | str) else ",".join(map(str, batch))


def latency_limit_s(max_latency_ms: float | None, wanted: Wanted) -> float | None:
    """The time that no batch may take, in seconds.

    Raises:
        UsageError: no time, or there is but one batch, which it cannot choose.
    """
    if max_latency_ms is None:
        return None
    if not (isfinite(max_latency_ms) and max_latency_ms > 0):
        raise UsageError(f"max-latency {max_latency_ms:g}: expected milliseconds, a number above 0.")
    if wanted is None or isinstance(wanted, int):
        raise UsageError(
            f"max-latency {max_latency_ms:g}: chooses among several batches; give batch auto, or several "
            "numbers: 6,12,24."
        )
    return max_latency_ms / 1e3


@dataclass(frozen=True, slots=True)
class BatchedModel:
    """A model, and what is said of its batch and its shapes: open first axes of inputs count samples.

    `declared` are the dimensions of its inputs, None of unknown rank, without weights listed among them.
    `asked` is the batch, word for word; `label` names the model in errors.
    """

    source: Model | Source
    label: str
    asked: str
    shapes: Mapping[str, Shape]
    declared: Mapping[str, tuple[Dimension, ...] | None]

    @classmethod
    def of(cls, source: Model | Source, shapes: Mapping[str, Shape], asked: str) -> BatchedModel:
        """Read what a model declares; one that is loaded leaves nothing open.

        Raises:
            TilewrightError: no such file, or no model.
        """
        from tilewright.frontend.onnx.inputs import declaration
        from tilewright.frontend.onnx.read import open_model

        declared: dict[str, tuple[Dimension, ...] | None] = {}
        if isinstance(source, Model):
            declared.update((value.name, value.shape) for value in source.graph.inputs)
            return cls(source, source.name, asked, shapes, declared)
        opened = open_model(source)
        graph = opened.model.graph
        weights = {w.name for w in (*graph.initializer, *(s.values for s in graph.sparse_initializer))}
        for value in graph.input:
            if value.name not in weights and (found := declaration(value, "input")) is not None:
                declared[value.name] = found.dims
        return cls(source, opened.origin.label, asked, shapes, declared)

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
            UsageError: the model fixes its batch, or its shapes say another, or leave axes open.
        """
        fixed = dict(self.shapes) if samples is None else self._shapes_for(samples)
        return optimise(as_model(self.source, fixed).graph, Options())[0]

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
        is_number = wanted_batch(self.asked) == samples
        if not self.open_inputs:
            if is_number and any(dims[0] == samples for dims in self.declared.values() if dims):
                return dict(self.shapes)
            raise UsageError(
                f"{self.label}: batch {self.asked}: the model fixes the first axis of every input; "
                "export it with its first axis open, or give no batch."
            )
        shapes = dict(self.shapes)
        for name in self.open_inputs:
            given = self.shapes.get(name)
            if given is None:
                continue
            if given[0] != 0 and not (is_number and given[0] == samples):
                raise UsageError(
                    f"batch {self.asked} and shapes {name}:{_text(given)} both say how many samples; "
                    f"give 0 for the batch: {name}:{_text((0, *given[1:]))}."
                )
            shapes[name] = (samples, *given[1:])
        symbols = self._symbols(shapes, samples)
        rest = (name for name in self.open_inputs if name not in shapes)
        return shapes | {name: self._completed(name, symbols, samples) for name in rest}

    def _symbols(self, shapes: Mapping[str, Shape], samples: int) -> dict[str, int]:
        """What names of open axes stand for, as far as shapes and the batch say."""
        symbols: dict[str, int] = {}
        for name, shape in shapes.items():
            dims = self.declared.get(name) or ()
            symbols |= {d: n for d, n in zip(dims, shape, strict=False) if isinstance(d, str)}
        for name in self.open_inputs:
            symbols |= {d: samples for d in (self.declared[name] or ())[:1] if isinstance(d, str)}
        return symbols

    def _completed(self, name: str, symbols: Mapping[str, int], samples: int) -> Shape:
        """The shape of an input that the shapes do not name, if its other axes are known."""
        dims = self.declared[name]
        rest = [symbols.get(d) if isinstance(d, str) else d for d in (dims or ())[1:]]
        known = [extent for extent in rest if extent is not None]
        if dims is None or len(known) < len(rest):
            example = "0x3x224x224" if dims is None else _text((0, *rest))
            raise UsageError(
                f"{self.label}: batch {self.asked} fixes only the first axis of input {name!r}; give "
                f"the others, 0 stands for the batch: shapes {name}:{example}."
            )
        return (samples, *known)


def _text(shape: Sequence[int | None]) -> str:
    """A shape as the command line takes it, with ? where nothing is known."""
    return "x".join("?" if extent is None else str(extent) for extent in shape)


class Batches:
    """Plans of one model for several batches. Seconds are remembered; networks are too large.

    `time_s` says how long a planned network takes.
    """

    def __init__(
        self,
        model: BatchedModel,
        target: SimulatingTarget,
        time_s: Callable[[Graph], float],
        progress: Progress,
    ) -> None:
        self.model, self.target = model, target
        self.time_s, self.progress = time_s, progress
        self._seconds: dict[int, float] = {}

    def graph(self, samples: int) -> Graph:
        """The network with so many samples."""
        self.progress(f"{counted(samples, 'sample')} for each cluster", 0, 1)
        return self.model.graph(samples)

    def seconds(self, samples: int) -> float:
        """How long a batch takes.

        Raises:
            InfeasibleMapping: it does not fit main memory.
        """
        if samples not in self._seconds:
            self._seconds[samples] = self.time_s(self.graph(samples))
        return self._seconds[samples]

    def throughputs(self, max_latency_s: float | None) -> list[tuple[int, float]]:
        """Batches that are worth it, with the samples per second of all clusters.

        Raises:
            InfeasibleMapping: not even one sample fits.
            UsageError: one sample takes longer than `max_latency_s`.
        """
        graph, num_clusters = self.graph(self.target.max_batch), self.target.machine.num_clusters
        throughputs: list[tuple[int, float]] = []
        for samples in self.target.batches(graph, self.model.batched(graph)):
            try:
                time_s = self.seconds(samples)
            except InfeasibleMapping:
                if not throughputs:
                    raise
                break
            if max_latency_s is not None and time_s > max_latency_s:
                if not throughputs:
                    raise UsageError(
                        f"max-latency {max_latency_s * 1e3:g}: a batch of one takes {time_s * 1e3:.3g} ms."
                    )
                break
            throughputs.append((samples, samples * num_clusters / time_s))
        return throughputs


def buckets(samples: int, most: int) -> tuple[int, ...]:
    """A number of samples as powers of two up to `most`, the largest first.

    >>> buckets(27, 8)
    (8, 8, 8, 2, 1)
    """
    full, rest = divmod(samples, most)
    return (most,) * full + tuple(1 << i for i in reversed(range(rest.bit_length())) if rest >> i & 1)


def shown(parts: Sequence[int]) -> str:
    """Parts of a run for people, equal ones together.

    >>> shown((8, 8, 8, 2, 1))
    '3 x 8 + 2 + 1'
    """
    equal = [(part, len(list(same))) for part, same in groupby(parts)]
    return " + ".join(f"{count} x {part}" if count > 1 else str(part) for part, count in equal)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of so many samples on each cluster: planned for just these, padded, or as plans for parts."""

    samples: int
    parts: tuple[int, ...] = field(metadata=about("Powers of two, run one after another.", key="buckets"))
    direct_s: float | None = field(metadata=about("null where it cannot be planned."))
    padded_s: float | None = field(metadata=about("As the next power of two."))
    in_buckets_s: float | None
    num_clusters: int = field(default=1, metadata=about(hidden=True))

    @property
    def ways(self) -> Mapping[Way, float]:
        """Seconds by way, those that there are."""
        times: dict[Way, float | None] = {
            "direct": self.direct_s,
            "padded": self.padded_s,
            "buckets": self.in_buckets_s,
        }
        return {way: seconds for way, seconds in times.items() if seconds is not None}

    @in_json
    def best(self) -> Way:
        """The fastest way, the first of equals."""
        return min(self.ways, key=lambda way: self.ways[way])

    @in_json
    def throughput_per_s(self) -> float:
        """Of all clusters, in the best way."""
        return self.samples * self.num_clusters / self.best_s

    def row(self) -> tuple[str, ...]:
        """Samples per second of all clusters by way, the parts, and the best way."""
        times = (self.direct_s, self.padded_s, self.in_buckets_s)
        rates = ("-" if s is None else f"{self.samples * self.num_clusters / s:,.0f}" for s in times)
        return (str(self.samples), *rates, shown(self.parts), self.best)

    @property
    def best_s(self) -> float:
        """Seconds of the fastest way."""
        return self.ways[self.best]


def runs(
    wanted: Sequence[int],
    most: int,
    seconds: Callable[[int], float],
    max_latency_s: float | None = None,
    num_clusters: int = 1,
) -> tuple[Run, ...]:
    """Runs of so many samples on each cluster. `seconds` plans a batch; `most` is the largest of a bucket.

    Raises:
        InfeasibleMapping: a number can be run in no way.
        UsageError: every way takes longer than `max_latency_s`.
    """
    known: dict[int, float | None] = {}

    def timed(samples: int) -> float | None:
        if samples not in known:
            try:
                known[samples] = seconds(samples)
            except InfeasibleMapping:
                known[samples] = None
        return known[samples]

    found: list[Run] = []
    for samples in wanted:
        parts = buckets(samples, most)
        times = [timed(part) for part in parts]
        whole = [t for t in times if t is not None]
        run = Run(
            samples,
            parts,
            timed(samples),
            timed(1 << (samples - 1).bit_length()),
            sum(whole) if len(whole) == len(times) else None,
            num_clusters,
        )
        if not run.ways:
            raise InfeasibleMapping(
                f"{counted(samples, 'sample')} fit neither at once nor in parts; give fewer."
            )
        if max_latency_s is not None and run.best_s > max_latency_s:
            raise UsageError(
                f"max-latency {max_latency_s * 1e3:g}: {counted(samples, 'sample')} take at least "
                f"{run.best_s * 1e3:.3g} ms ({run.best}); allow more, or give fewer."
            )
        found.append(run)
    return tuple(found)
