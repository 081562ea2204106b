"""Winograd beside the direct kernel on the same nests, and whole networks with Winograd chosen per layer.

Run: `python -m benchmarks micro_winograd layers [name-filter] [rounds]`, or with names of zoo networks
`errors [name,name] [inputs]` or `times [name,name] [rounds]`.

Layers: one thread, interleaved; "hot" repeats one set of weights, "cold" rotates over copies of the packed
weights that together exceed the L2 cache many times. Errors are maxima against float64, relative to the
largest output. Networks: each layer takes the variant with the largest estimated gain. Informal: best of the
rounds.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tilewright
from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.compiled import CompiledModel
from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Nest
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout, Layouts, Packed
from tilewright.targets.cpu.lower import lower
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.winograd import WINOGRAD, WinogradProblem, match_winograd, winograd_gain
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import PTR, Int, Val
from tilewright.tuning import NO_CHOICES, Choice, Choices

Array = np.ndarray[Any, Any]
COLD_BYTES = 48 << 20
# An estimate must promise this much before the less exact kernel is taken.
MIN_GAIN = 1.1
LAYERS = (
    (64, 56), (128, 28), (256, 14), (512, 7), (32, 112), (96, 27), (192, 13), (256, 64), (64, 224),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """A padded 3x3 convolution with bias and relu, `channels` in and out, square."""

    channels: int
    side: int

    @property
    def name(self) -> str:
        """Channels at side."""
        return f"{self.channels}@{self.side}"

    @property
    def macs(self) -> int:
        """Padding taps included."""
        return 9 * self.channels**2 * self.side**2

    def graph(self) -> Graph:
        """The operators."""
        g, c = Graph(self.name), self.channels
        rng = np.random.default_rng(0)
        shape = (1, c, self.side, self.side)
        x = g.add_input(Value("x", DType.FLOAT32, shape))
        weight = (rng.standard_normal((c, c, 3, 3)) * np.sqrt(2 / (9 * c))).astype(np.float32)
        bias = (0.1 * rng.standard_normal(c)).astype(np.float32)
        inputs = [x, g.constant(weight, "w"), g.constant(bias, "b")]
        attributes = {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}
        y = g.append(Node("Conv", inputs, [g.value("y", DType.FLOAT32, shape)], attributes)).output
        y = g.append(Node("Relu", [y], [g.value("relu", DType.FLOAT32, shape)])).output
        g.outputs = [y]
        return g


def aligned(array: Array) -> Array:
    """A copy at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Runner:
    """One kernel, JIT'd with a loop over its chunks; `copies` of its packed weights to rotate over."""

    def __init__(self, kernel: Kernel, operands: dict[tuple[str, int], Array], isa: Isa) -> None:
        self.kernel = kernel
        self._scratch = aligned(np.zeros(kernel.scratch_bytes + 64, np.uint8))
        (packed,) = [a for a in kernel.args if isinstance(a, Packed)]
        weights = packed.arrangement.arrange(operands[packed.source.key])
        count = max(1, COLD_BYTES // weights.nbytes)
        self._weights = [aligned(weights) for _ in range(count)]
        blocks = []
        for copy in self._weights:
            pointers = [
                copy.ctypes.data if isinstance(a, Packed) else operands[a.key].ctypes.data
                for a in kernel.args
            ]
            blocks.append((ctypes.c_void_p * len(pointers))(*pointers))
        self._blocks = blocks
        self._keep = operands
        e = Emitter(triple=isa.triple)
        with e.function("run", (Param("args", PTR),)) as (args,):
            area = Val(f"inttoptr (i64 {self._scratch.ctypes.data} to ptr)", PTR)

            def call(index: Int, _: object) -> None:
                e.call(kernel.symbol, [args, e.index(index), area])

            e.loop(0, kernel.num_chunks, 1, call)
        start = time.perf_counter()
        image = compile_object(kernel.text, isa)
        self.compile_ms = 1e3 * (time.perf_counter() - start)
        self._library = JitLibrary([image, compile_object(e.text(), isa)], ["run"])
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._library["run"])
        self._next = 0

    def hot(self) -> None:
        """Once, always with the same weights."""
        self._function(ctypes.addressof(self._blocks[0]))

    def cold(self) -> None:
        """Once, with the next copy of the weights."""
        self._next = (self._next + 1) % len(self._blocks)
        self._function(ctypes.addressof(self._blocks[self._next]))


def prepare(
    layer: Layer, isa: Isa
) -> tuple[dict[str, Runner], dict[str, float], dict[str, float], WinogradProblem]:
    """Runners, relative errors and estimated gains by variant, and the problem."""
    graph = layer.graph()
    group = fuse_nodes(graph.nodes, graph.outputs)
    assert isinstance(group, NestGroup)
    (nest,) = group.nests
    nhwc = Layout((0, 2, 3, 1))
    layouts: Layouts = {
        ("output", 0): nhwc,
        **{
            ("input", i): Layout.row_major(len(v.shape)) if v.is_constant else nhwc
            for i, v in enumerate(group.inputs)
        },
    }
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    shape = group.inputs[0].shape
    x = np.maximum(np.random.default_rng(1).standard_normal(shape), 0).astype(np.float32)
    expected = reference(x, group.inputs[1].data, group.inputs[2].data)
    kernels: dict[str, Kernel] = {}
    context = Context(isa, layouts, "strict", constants, next_local=9)
    made = lower_with(CONTRACTION, nest, context)
    assert not isinstance(made, Declined)
    kernels["direct"] = made[-1]
    for tile in (2, 4):
        way = Choice.of("winograd", tile=tile)
        found = lower_with(WINOGRAD, nest, replace(context, accuracy="default"), way)
        assert not isinstance(found, Declined)
        kernels[f"F{tile}"] = found[0]
    problem = match_winograd(nest, layouts)
    assert not isinstance(problem, Declined)
    gains = {f"F{t}": winograd_gain(problem, t, context) for t in (2, 4)}
    runners: dict[str, Runner] = {}
    errors: dict[str, float] = {}
    for name, kernel in kernels.items():
        operands = {
            ("input", i): aligned(v.data if v.data is not None else x.transpose(nhwc.order))
            for i, v in enumerate(group.inputs)
        }
        out = aligned(np.full([shape[a] for a in nhwc.order], np.nan, np.float32))
        operands["output", 0] = out
        raw = {**operands}
        runners[name] = Runner(kernel, raw, isa)
        runners[name].hot()
        got = out.transpose(0, 3, 1, 2)
        errors[name] = float(np.abs(got - expected).max() / np.abs(expected).max())
    return runners, errors, gains, problem


def reference(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """relu(conv3x3 + bias) in float64."""
    assert weight is not None
    assert bias is not None
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    total = np.zeros((weight.shape[0], height * width))
    for u in range(3):
        for v in range(3):
            window = padded[0, :, u : u + height, v : v + width].reshape(x.shape[1], -1)
            total += weight[:, :, u, v].astype(np.float64) @ window
    return np.maximum(total.reshape(1, -1, height, width) + bias.reshape(1, -1, 1, 1), 0)


def best_of(contestants: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of each, the best of interleaved rounds; each warms up until the others' threads sleep."""
    best = [float("inf")] * len(contestants)
    for _ in range(rounds):
        for position, contestant in enumerate(contestants):
            repeats = max(1, min(20, int(4e-3 / best[position]))) if best[position] < 1 else 1
            contestant()
            start = time.perf_counter()
            for _ in range(repeats):
                contestant()
            best[position] = min(best[position], (time.perf_counter() - start) / repeats)
    return best


def layers(pattern: str, rounds: int) -> None:
    """The table of layers."""
    isa = host_isa()
    print(
        f"{'layer':8} {'weights':7} {'direct us':>9} {'GF/s':>6} {'F2 us':>8} {'x':>5} {'(est)':>6} "
        f"{'F4 us':>8} {'x':>5} {'(est)':>6}   error: direct, F2, F4"
    )
    for channels, side in LAYERS:
        layer = Layer(channels, side)
        if pattern not in layer.name:
            continue
        runners, errors, gains, _ = prepare(layer, isa)
        names = ("direct", "F2", "F4")
        for weights in ("hot", "cold"):
            times = best_of([getattr(runners[n], weights) for n in names], rounds)
            direct, f2, f4 = (1e6 * t for t in times)
            print(
                f"{layer.name:8} {weights:7} {direct:9.0f} {2e-3 * layer.macs / direct:6.0f} {f2:8.0f} "
                f"{direct / f2:5.2f} {gains['F2']:6.2f} {f4:8.0f} {direct / f4:5.2f} {gains['F4']:6.2f}   "
                + " ".join(f"{errors[n]:.1e}" for n in names),
                flush=True,
            )
        for name in ("F2", "F4"):
            kernel = runners[name].kernel
            lines = kernel.text.count("\n")
            print(
                f"         {name}: {', '.join(kernel.notes)}, scratch {kernel.scratch_bytes / 1e3:.0f} kB, "
                f"{lines} lines, {runners[name].compile_ms:.0f} ms"
            )


@dataclass
class Chooser:
    """Stands in for `lower_product`: each nest takes the tile of the largest estimated gain, or none."""

    tiles: tuple[int, ...]
    min_gain: float
    chosen: list[str]

    def __call__(
        self, nest: Nest, context: Context, choices: Choices = NO_CHOICES
    ) -> tuple[Kernel, ...] | Declined:
        problem = match_winograd(nest, context.layouts)
        if not isinstance(problem, Declined):
            gains = ((winograd_gain(problem, t, context), t) for t in self.tiles)
            gain, tile = max(gains, default=(0.0, 0))
            if tile and gain >= self.min_gain:
                made = lower_with(WINOGRAD, nest, context, Choice.of("winograd", tile=tile))
                if not isinstance(made, Declined):
                    side = problem.rows.extent
                    self.chosen.append(f"F{tile} {problem.inputs.extent}-{problem.outputs.extent}@{side}")
                    return made
        return lower_with(CONTRACTION, nest, context)


def compiled(
    model: tilewright.Model, tiles: tuple[int, ...], min_gain: float, threads: int
) -> tuple[CompiledModel, list[str]]:
    """The model with Winograd tiles of these sizes allowed, and what was chosen."""
    chooser = Chooser(tiles, min_gain, [])
    original = lower.lower_product
    lower.lower_product = chooser
    try:
        return tilewright.compile(model, threads=threads), chooser.chosen
    finally:
        lower.lower_product = original


# Tiles allowed, and the least estimated gain for which one is taken.
VARIANTS: dict[str, tuple[tuple[int, ...], float]] = {
    "direct": ((), 0.0),
    "F2": ((2,), MIN_GAIN),
    "F4": ((4,), MIN_GAIN),
    "mixed": ((2, 4), MIN_GAIN),
}
# Whatever the gain: what the errors would be at worst.
EVERYWHERE = {"all F2": ((2,), 0.0), "all F4": ((4,), 0.0)}


def contestants(
    name: str, threads: int, variants: Mapping[str, tuple[tuple[int, ...], float]]
) -> tuple[tilewright.Model, dict[str, Callable[[Mapping[str, Array]], Array]]]:
    """The network, and what runs it: ONNX Runtime and each variant."""
    import onnxruntime as ort

    proto = zoo.build(name)
    model = tilewright.load(proto)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    runs: dict[str, Callable[[Mapping[str, Array]], Array]] = {"ort": partial(first_output, session)}
    for label, (tiles, min_gain) in variants.items():
        start = time.perf_counter()
        made, chosen = compiled(model, tiles, min_gain, threads)
        seconds = time.perf_counter() - start
        runs[label] = partial(first_output, made)
        counts = ", ".join(f"{n} x {what}" for what, n in Counter(chosen).items())
        print(f"  {label}: compiled in {seconds:.1f} s; {counts or 'no Winograd'}")
    return model, runs


def network_errors(names: Sequence[str], num_inputs: int) -> None:
    """Errors of the first output against float64, relative to its largest element, over several inputs."""
    for name in names:
        print(f"{name}: error of {num_inputs} inputs")
        model, runs = contestants(name, 1, VARIANTS | EVERYWHERE)
        worst, squares = Counter[str](), Counter[str]()
        for seed in range(num_inputs):
            feed = zoo.example_inputs(name, seed)
            expected = next(iter(run_graph(model.graph, feed, dtype=DType.FLOAT64).values()))
            scale = np.abs(expected).max()
            for label, run in runs.items():
                error = np.abs(run(feed) - expected) / scale
                worst[label] = max(worst[label], error.max())
                squares[label] += np.mean(error**2) / num_inputs
        for label in runs:
            rms, ort_rms = np.sqrt(squares[label]), np.sqrt(squares["ort"])
            print(
                f"  {label:7} max {worst[label]:.2e} ({worst[label] / worst['ort']:.2f} x ort), "
                f"rms {rms:.2e} ({rms / ort_rms:.2f} x ort)",
                flush=True,
            )


def network_times(names: Sequence[str], rounds: int) -> None:
    """Time of whole networks: direct only, F2, F4, and the larger gain of both."""
    for name in names:
        for threads in (1, 2):
            print(f"{name}: {threads} thread{'s' * (threads > 1)}")
            _, runs = contestants(name, threads, VARIANTS)
            feed = zoo.example_inputs(name)
            best = dict(
                zip(runs, best_of([partial(run, feed) for run in runs.values()], rounds), strict=True)
            )
            for label, seconds in best.items():
                print(
                    f"  {label:7} {1e3 * seconds:7.2f} ms, {best['direct'] / seconds:.2f} x direct, "
                    f"{best['ort'] / seconds:.2f} x ort",
                    flush=True,
                )


def first_output(model: Any, feed: Mapping[str, Array]) -> Array:
    """One run."""
    result: Array = model.run(None, feed)[0]
    return result


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("mode", nargs="?", default="layers", choices=("layers", "errors", "times"))
    parser.add_argument("names", nargs="?", default="", help="part of layers' names, or networks by commas")
    parser.add_argument("rounds", nargs="?", type=int)


def main(arguments: Namespace) -> None:
    """Print what the mode measures."""
    networks = arguments.names.split(",") if arguments.names else ["resnet18", "resnet50"]
    if arguments.mode == "layers":
        layers(arguments.names, arguments.rounds or 40)
    elif arguments.mode == "errors":
        network_errors(networks, arguments.rounds or 3)
    else:
        network_times(networks, arguments.rounds or 40)
