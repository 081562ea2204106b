"""`tw.quantize`: a float model in quantised form, with what it errs and takes beside the float one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.api.compilation import compilation_request, compile_model
from tilewright.api.inputs import feed_of, read_arrays, running_on
from tilewright.api.models import Shapes
from tilewright.api.profiling import profile_model
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import NumericMismatch, UsageError
from tilewright.files import require_other_file, require_writable, write_output
from tilewright.frontend.onnx import Source
from tilewright.frontend.onnx.read import embedded_model, files_beside
from tilewright.options import Options, parse_shapes
from tilewright.progress import Progress
from tilewright.quantization import (
    METHODS,
    RANGE_RULES,
    Choices,
    QuantizableLayer,
    Ranges,
    measured_values,
    prepared,
    quantizable_layers,
    quantized,
    widened,
)
from tilewright.results import Result, Table, about, in_json
from tilewright.text.formatting import counted, format_bytes, format_ms

Samples = Mapping[str, Array] | str | Path | Sequence[Mapping[str, Array] | str | Path]
"""One sample or several: arrays by input, .npz files, or folders of these."""

_NUM_TIMED_RUNS = 7
_PROFILE_S = 0.5


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A layer of the model, and what became of it."""

    name: str
    op_type: str
    is_quantized: bool
    num_weights: int
    error_alone: float | None = field(
        metadata=about("Of the outputs with this layer alone quantised; null where it was not measured.")
    )
    float_us: float | None = field(metadata=about("Of a run of the float model; null likewise."))


@dataclass(frozen=True, slots=True)
class QuantizeTrial:
    """A quantised form of the model as it was measured, with so many layers in float."""

    num_float: int
    error: float
    run_ms: float = field(metadata=about("Median of runs in turn with the float model's."))
    model_bytes: int


@dataclass(frozen=True, slots=True)
class QuantizeResult(Result):
    """A model in quantised form. Errors are the distance of all outputs from the float model's, relative to
    those (2-norm), of the worst sample."""

    model: str
    method: str
    samples: int = field(metadata=about("How many it was calibrated and judged on."))
    is_random: bool = field(metadata=about("Whether these were random numbers, as no samples were given."))
    max_error: float | None = field(metadata=about("What was asked for."))
    error: float
    float_ms: float
    run_ms: float
    float_bytes: int
    model_bytes: int
    layers: tuple[QuantizedLayer, ...]
    trials: tuple[QuantizeTrial, ...]
    output: Path | None = field(metadata=about("Where it was written."))
    proto: onnx.ModelProto = field(metadata=about(hidden=True))

    @in_json
    def num_quantized(self) -> int:
        """Layers whose weights are whole numbers."""
        return sum(layer.is_quantized for layer in self.layers)

    def tables(self) -> Sequence[Table]:
        """The trade between layers in float, error, time and size; then the layers, where some stay float."""
        head = ("layers in float", "error", "run in ms", "float / this", "size")
        rows = [
            (
                f"{trial.num_float}",
                f"{trial.error:.2e}",
                format_ms(trial.run_ms),
                f"{self.float_ms / trial.run_ms:.2f}",
                format_bytes(trial.model_bytes),
            )
            for trial in self.trials
        ]
        rows.append(("all", "0", format_ms(self.float_ms), "1.00", format_bytes(self.float_bytes)))
        title = f"{self.model}, {self.method}: {counted(self.num_quantized, 'layer')} quantised"
        tables = [Table(head, tuple(rows), title, (0, 1, 2, 3, 4))]
        measured = [layer for layer in self.layers if layer.error_alone is not None]
        if measured:
            shown = sorted(measured, key=lambda layer: (layer.is_quantized, -(layer.error_alone or 0)))
            cells = tuple(
                (
                    layer.name,
                    layer.op_type,
                    f"{layer.error_alone:.2e}",
                    "" if layer.float_us is None else f"{layer.float_us:,.1f}",
                    "whole numbers" if layer.is_quantized else "float",
                )
                for layer in shown
            )
            head = ("layer", "operator", "error alone", "µs in float", "runs in")
            tables.append(Table(head, cells, "layers that stay float, then the others", (2, 3)))
        return tables

    def lines(self) -> Sequence[str]:
        """What the figures are of."""
        given = "random numbers; give samples with -i" if self.is_random else counted(self.samples, "sample")
        lines = [f"error: distance from the float outputs relative to them, worst of {given}"]
        if self.run_ms > self.float_ms:
            lines.append("on this machine it is no faster than the float model")
        return lines


@checked
def quantize_model(
    model: Source,
    output: str | Path | None = None,
    *,
    samples: Samples | None = None,
    method: str = "static",
    max_error: float | None = None,
    bits: int = 8,
    block: int = 32,
    per_channel: bool = True,
    ranges: str = "minmax",
    keep: Iterable[str] = (),
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> QuantizeResult:
    """Quantise a float32 model, and measure what it then errs and takes.

    `method` is `static` (bytes between layers, with scales from `samples`), `dynamic` (inputs of products
    become bytes as they arrive) or `weights` (weights of `bits` 4 or 8 in blocks, products in float). With
    `max_error` layers stay float until the outputs err no more than that on the samples: those first that err
    most for the time that they take, each measured alone; how many suffice is found by halving. Layers named
    in `keep` stay float in any case. `ranges` of values are all that was seen (`minmax`) or `percentile`.
    `output` is written as ONNX. `settings` are fields of `Options`, for the runs.

    Raises:
        UsageError: nothing can be quantised, a setting that makes no sense, or a file that cannot be written.
        NumericMismatch: no quantised form errs as little as `max_error`.
    """
    _require_sense(method, max_error, bits, block, ranges)
    if output is not None:
        given = samples if isinstance(samples, list | tuple) else (samples,)
        require_other_file(Path(output), model, *given)
        if Path(output).exists():
            require_other_file(Path(output), *files_beside(model))
        require_writable(output)
    if isinstance(shapes, str):
        shapes = parse_shapes(shapes)
    known, options = compilation_request(model, None, shapes, options, settings)
    proto = prepared(embedded_model(model))
    layers = METHODS[method].layers(proto)
    kept = {keep} if isinstance(keep, str) else set(keep)
    unknown = kept - {layer.name for layer in quantizable_layers(proto)}
    if unknown:
        raise UsageError(f"keep {min(unknown)!r}: no layer of the model has this name.")
    chosen = tuple(layer for layer in layers if layer.name not in kept)
    if not chosen:
        kinds = ", ".join(METHODS[method].op_types)
        raise UsageError(
            f"{known.name}: no {kinds} of float32 with constant weights that {method} could quantise."
        )
    update = progress or (lambda *_: None)
    bench = _Bench(proto, method, Choices(per_channel, bits, block), options, update)
    bench.measure(samples, ranges)
    trial = bench.trial(chosen, len(layers) - len(chosen))
    trials, alone, times = [trial], dict[int, float](), dict[int, float]()
    if max_error is not None and trial.error > max_error:
        alone = {layer.number: bench.error_of([layer], f"{layer.name} alone") for layer in chosen}
        times = bench.float_us(chosen)
        least = min(alone, key=lambda number: (alone[number], number))

        def rank(layer: QuantizableLayer) -> tuple[float, ...]:
            gain = alone[layer.number] ** 2 / (times.get(layer.number) or 1.0)
            return layer.number == least, -gain, layer.number

        order = sorted(chosen, key=rank)
        fewest, enough = 0, len(order)  # so many in float are too few; so many suffice
        while enough - fewest > 1:
            middle = (fewest + enough) // 2
            trials.append(bench.trial(order[middle:], len(layers) - len(order) + middle))
            if trials[-1].error > max_error:
                fewest = middle
            else:
                enough, trial = middle, trials[-1]
        if enough == len(order):
            raise _too_much(known.name, method, max_error, alone[least])
        chosen = tuple(order[enough:])
    numbers = {layer.number for layer in chosen}
    made = bench.model(chosen)
    if output is not None:
        write_output(output, made.SerializeToString())
    return QuantizeResult(
        model=known.name,
        method=method,
        samples=len(bench.feeds),
        is_random=samples is None,
        max_error=max_error,
        error=trial.error,
        float_ms=bench.float_ms,
        run_ms=trial.run_ms,
        float_bytes=proto.ByteSize(),
        model_bytes=trial.model_bytes,
        layers=tuple(
            QuantizedLayer(
                layer.name,
                layer.op_type,
                layer.number in numbers,
                layer.num_weights,
                alone.get(layer.number),
                times.get(layer.number),
            )
            for layer in layers
        ),
        trials=tuple(sorted(trials, key=lambda trial: trial.num_float)),
        output=None if output is None else Path(output),
        proto=made,
    )


class _Bench:
    """Quantised forms of one model, each compiled, run on the samples and held against the float model."""

    def __init__(
        self, proto: onnx.ModelProto, method: str, choices: Choices, options: Options, update: Progress
    ) -> None:
        self._proto, self._method, self._choices = proto, method, choices
        self._options, self._update = options, update
        self._float = self._compiled(proto)
        self._float_s: list[float] = []
        self._bounds: Mapping[str, tuple[float, float]] = {}
        self._expected: list[Sequence[Array]] = []
        self.feeds: list[Mapping[str, Array]] = []

    def measure(self, samples: Samples | None, rule: str) -> None:
        """Run the float model on the samples: its outputs, and the ranges of its values."""
        self.feeds = list(_feeds(samples, self._float.get_inputs(), self._options.seed))
        with running_on(None if samples is None else self.feeds[0]):
            self._expected = [self._float.run(None, feed) for feed in self.feeds]
        names = measured_values(self._proto) if METHODS[self._method].needs_ranges else ()
        if not names:
            return
        given = {spec.name for spec in self._float.get_inputs()}
        made = [name for name in names if name not in given]
        found = Ranges(rule)
        wide = self._compiled(widened(self._proto, made)) if made else None
        for number, feed in enumerate(self.feeds):
            self._update("measuring ranges", number, len(self.feeds))
            found.add({name: np.asarray(feed[name]) for name in names if name in given})
            if wide is not None:
                found.add(dict(zip(made, wide.run(None, feed), strict=True)))
        self._bounds = found.bounds()

    def model(self, layers: Sequence[QuantizableLayer]) -> onnx.ModelProto:
        """The model with these layers quantised."""
        return quantized(
            self._proto, self._method, {layer.number for layer in layers}, self._bounds, self._choices
        )

    def error_of(self, layers: Sequence[QuantizableLayer], what: str) -> float:
        """What the outputs err with these layers quantised."""
        self._update(f"measuring {what}", 0, 1)
        return self._error(self._compiled(self.model(layers)))

    def trial(self, layers: Sequence[QuantizableLayer], num_float: int) -> QuantizeTrial:
        """Error, time and size of the model with these layers quantised."""
        self._update(f"measuring with {counted(num_float, 'layer')} in float", 0, 1)
        made = self.model(layers)
        compiled = self._compiled(made)
        error, runs_s = self._error(compiled), []
        for _ in range(_NUM_TIMED_RUNS):
            self._float_s.append(_seconds(self._float, self.feeds[0]))
            runs_s.append(_seconds(compiled, self.feeds[0]))
        return QuantizeTrial(num_float, error, 1e3 * statistics.median(runs_s), made.ByteSize())

    def float_us(self, layers: Sequence[QuantizableLayer]) -> dict[int, float]:
        """What the kernels of these layers take in the float model, by position; kernels of several share."""
        if not self._float.facts.target.is_cpu:
            return {}
        self._update("timing layers in float", 0, 1)
        names = {layer.name: layer.number for layer in layers}
        found: dict[int, float] = {}
        for kernel in profile_model(self._float, feed=self.feeds[0], duration_s=_PROFILE_S).kernels:
            numbers = [names[node] for node in kernel.nodes if node in names]
            found |= {number: 1e-3 * kernel.median_ns / len(numbers) for number in numbers}
        return found

    @property
    def float_ms(self) -> float:
        """Median of the float model's runs."""
        return 1e3 * statistics.median(self._float_s)

    def _compiled(self, model: onnx.ModelProto) -> CompiledModel:
        return compile_model(model, options=self._options)

    def _error(self, compiled: CompiledModel) -> float:
        return max(
            _distance(compiled.run(None, feed), expected)
            for feed, expected in zip(self.feeds, self._expected, strict=True)
        )


def _distance(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Distance relative to what was expected, in the 2-norm over all outputs of floats; of whole numbers
    where there are no others. Infinite where another shape came out, or one alone is no finite number."""
    kinds = "f" if any(y.dtype.kind == "f" for y in expected) else "iub"
    apart = size = 0.0
    for got_one, expected_one in zip(got, expected, strict=True):
        if expected_one.dtype.kind not in kinds:
            continue
        if got_one.shape != expected_one.shape:
            return inf
        x, y = got_one.astype(np.float64), expected_one.astype(np.float64)
        differs = (x != y) & ~(np.isnan(x) & np.isnan(y))
        if not np.isfinite(x[differs]).all() or not np.isfinite(y[differs]).all():
            return inf
        apart += float(np.square(x[differs] - y[differs]).sum())
        size += float(np.square(y[np.isfinite(y)]).sum())
    return 0.0 if not apart else float(np.sqrt(apart / size)) if size else inf


def _seconds(compiled: CompiledModel, feed: Mapping[str, Array]) -> float:
    start_s = time.perf_counter()
    compiled.run(None, feed)
    return time.perf_counter() - start_s


def _feeds(samples: Samples | None, specs: Sequence[TensorInfo], seed: int) -> Iterable[Mapping[str, Array]]:
    """The samples one by one; random numbers where none are given."""
    if samples is None:
        yield feed_of(None, specs, seed)
        return
    listed = [samples] if isinstance(samples, Mapping | str | Path) else list(samples)
    if not listed:
        raise UsageError("samples: give at least one.")
    for sample in listed:
        if isinstance(sample, Mapping):
            yield sample
            continue
        path = Path(sample)
        files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path}: no .npz file lies there.")
        yield from (read_arrays(file, specs) for file in files)


def _require_sense(method: str, max_error: float | None, bits: int, block: int, ranges: str) -> None:
    if method not in METHODS:
        raise UsageError(f"method {method!r}: expected one of {', '.join(METHODS)}.")
    if ranges not in RANGE_RULES:
        raise UsageError(f"ranges {ranges!r}: expected one of {', '.join(RANGE_RULES)}.")
    if max_error is not None and not 0 < max_error < inf:
        raise UsageError(f"max_error {max_error:g}: give a number above 0, such as 0.02.")
    if bits not in (4, 8) or (bits == 4 and method != "weights"):
        raise UsageError(f"bits {bits}: weights have 8; with method weights 4 or 8.")
    if not 16 <= block <= 256 or block & (block - 1):
        raise UsageError(f"block {block}: give a power of two from 16 to 256.")


def _too_much(name: str, method: str, max_error: float, least: float) -> NumericMismatch:
    return NumericMismatch(
        f"{name}: no {method} form errs at most {max_error:g}: one layer alone errs {least:.2g} at least. "
        "Allow more, or try another method."
    )
