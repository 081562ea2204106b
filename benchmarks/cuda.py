"""A GPU in fifteen minutes: values, latencies of graphs, convolutions, networks, stages, peers.

Run: `python -m benchmarks cuda [--device driver] [--sections values,latencies] [--output cuda.jsonl]`. Each
section ends by its own time limit, appends rows as it goes and leaves the others alone when it fails. With
`--device emulated` the same runs on the processor: its values count, its times do not. Peers are cuDNN and
torch, where torch sees a GPU.

Before, on a machine with the extra cuda-check, `python -m benchmarks cuda --prepare FOLDER --isa sm_90`
assembles every kernel and computes what is right, and `--prepared FOLDER` loads those: the driver's
assembler takes longer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.command import Namespace, Parser, again
from benchmarks.cuda_peers import CHAIN, cudnn_us, torch_us
from tilewright.compiler import compile_graph
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.targets.cuda import assembler
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.device import Device, GraphNode, Join, KernelCode, Kernels, Launch, LoadedGraph
from tilewright.targets.cuda.devices import open_device
from tilewright.targets.cuda.emulated.device import EmulatedMemory
from tilewright.targets.cuda.executable import CudaExecutable
from tilewright.targets.cuda.ptx import gpu_isa, ptx_of
from tilewright.zoo import build

LIMITS_S = {
    "values": 30, "latencies": 45, "convolutions": 150, "networks": 150, "stages": 60, "tools": 45,
}  # fmt: skip
ACCURACIES = {"default": 1e-5, "relaxed": 2e-3, "fast": 2e-2}
"""Errors of the largest output that are right for float32, tf32 and bfloat16."""

# Channels in and out, size, kernel, stride: ResNet-50, then Inception V3.
CONVOLUTIONS = (
    (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1),
    (256, 128, 56, 1, 1), (128, 128, 56, 3, 2), (128, 512, 28, 1, 1), (512, 128, 28, 1, 1),
    (128, 128, 28, 3, 1), (256, 512, 56, 1, 2), (512, 256, 28, 1, 1), (256, 256, 28, 3, 2),
    (256, 1024, 14, 1, 1), (1024, 256, 14, 1, 1), (256, 256, 14, 3, 1), (512, 1024, 28, 1, 2),
    (1024, 512, 14, 1, 1), (512, 512, 14, 3, 2), (512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1),
    (512, 512, 7, 3, 1), (32, 64, 147, 3, 1), (80, 192, 73, 3, 1), (192, 64, 35, 1, 1),
    (48, 64, 35, 5, 1), (64, 96, 35, 3, 1), (96, 96, 35, 3, 1), (288, 384, 35, 3, 2),
    (768, 192, 17, 1, 1), (160, 160, 17, 1, 1), (192, 320, 17, 3, 2), (1280, 320, 8, 1, 1),
    (1280, 448, 8, 1, 1), (448, 384, 8, 3, 1), (2048, 384, 8, 1, 1),
)  # fmt: skip
NETWORKS = ("resnet50", "inception_v3", "ios_randwire", "ios_nasnet_a", "squeezenet1_1", "mobilenet_v2")
PLANS = {
    "sequential": ("stages", "sequential"),
    "greedy": ("stages", "greedy"),
    "ios strict": ("stages", "ios"),
    "ios relaxed": ("data", "ios"),
    "ios with splits": ("stages", "ios{moldable=true}"),
}
STAGES_OF = "inception_v3"
_MOST_STAGES = 100
_EXPECTED = "expected.npz"
_EMPTY = KernelCode("define ptx_kernel void @empty() {\n  ret void\n}\n")


@dataclass(eq=False)
class Recorded:
    """A device that keeps the graphs it is given, and loads what was assembled before."""

    device: Device
    prepared: Path | None = None
    graphs: list[tuple[list[GraphNode], Kernels]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def load(self, modules: Sequence[KernelCode]) -> Kernels:
        isa = self.device.facts.isa
        found = []
        for module in modules:
            file = None if self.prepared is None else self.prepared / _file_of(module.text, isa)
            image = {f"{isa}.cubin": file.read_bytes()} if file is not None and file.exists() else {}
            found.append(replace(module, images=image))
        return self.device.load(found)

    def graph(self, nodes: Sequence[GraphNode], kernels: Kernels) -> LoadedGraph:
        self.graphs.append((list(nodes), kernels))
        return self.device.graph(nodes, kernels)


class Collector:
    """Stands for a device where kernels are only wanted as texts."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def load(self, modules: Sequence[KernelCode]) -> Collector:
        self.texts |= dict.fromkeys(module.text for module in modules)
        return self

    def graph(self, nodes: Sequence[GraphNode], kernels: Kernels) -> Collector:
        return self

    def allocate(self, size_bytes: int, name: str = "") -> EmulatedMemory:
        return EmulatedMemory(size_bytes)

    def pinned(self, size_bytes: int) -> EmulatedMemory:
        return EmulatedMemory(size_bytes)

    def write(self, address: int, data: Any) -> None:
        """Nothing runs."""

    def launch(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass(eq=False)
class Run:
    """What sections share: the device, where rows go, how much is measured."""

    device: Recorded
    output: Path
    only: str
    samples: int
    expected: Mapping[str, Any] = field(default_factory=dict)
    until: float = 0.0

    def row(self, **facts: Any) -> None:
        with self.output.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def wants(self, name: object) -> bool:
        """Whether a case is asked for, and there is time for it."""
        return not self.is_late and self.only in str(name)

    @contextmanager
    def compiled(self, model: onnx.ModelProto, **options: Any) -> Iterator[tuple[CudaCode, CudaExecutable]]:
        """A model on this device, loaded; its graphs are the last ones recorded."""
        code = code_of(model, **options)
        self.device.graphs.clear()
        executable = code.load_on(self.device)
        try:
            yield code, executable
        finally:
            executable.close()

    def launches(self) -> tuple[list[Launch], Kernels]:
        """The kernels of the model that was compiled last."""
        nodes, kernels = self.device.graphs[-1]
        return [node.work for node in nodes if isinstance(node.work, Launch)], kernels

    def chain_us(self, works: Sequence[Launch | Join], kernels: Kernels, copies: int = CHAIN) -> list[float]:
        """Times of one copy of works that run one after another, in a graph of many."""
        return [time_us / copies for time_us in self.graph_us(chained(in_a_row(works), copies), kernels)]

    def graph_us(self, nodes: Sequence[GraphNode], kernels: Kernels) -> list[float]:
        """Times of a graph from its launch to its end, after one run that does not count."""
        return self.graphs_us([nodes], kernels)[0]

    def graphs_us(self, graphs: Sequence[Sequence[GraphNode]], kernels: Kernels) -> list[list[float]]:
        """The same of several graphs, in turns."""
        with ExitStack() as stack:
            runs = []
            for nodes in graphs:
                graph = self.device.device.graph(nodes, kernels)
                stack.callback(graph.close)
                runs.append(lambda graph=graph: (graph.launch(), self.device.synchronise()))
            return self.in_turns_us(runs)

    def times_us(self, run: Callable[[], object]) -> list[float]:
        return self.in_turns_us([run])[0]

    def in_turns_us(self, runs: Sequence[Callable[[], object]]) -> list[list[float]]:
        """Times of each, one a round; the first round does not count."""
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(self.samples + 1):
            for run, found in zip(runs, times, strict=True):
                start = time.perf_counter_ns()
                run()
                found.append((time.perf_counter_ns() - start) / 1e3)
            if self.is_late:
                break
        return [found[1:] or found for found in times]


def in_a_row(works: Sequence[Launch | Join]) -> list[GraphNode]:
    """Works that run one after another."""
    return [GraphNode(f"n{i}", work, (i - 1,) if i else ()) for i, work in enumerate(works)]


def chained(nodes: Sequence[GraphNode], copies: int = CHAIN) -> list[GraphNode]:
    """Copies of a graph one after another: what begins one waits for all that ends the one before."""
    followed = {before for node in nodes for before in node.after}
    ends = [i for i in range(len(nodes)) if i not in followed]
    chain: list[GraphNode] = []
    for copy in range(copies):
        start = len(chain)
        before = tuple(start - len(nodes) + i for i in ends) if copy else ()
        for node in nodes:
            after = tuple(start + i for i in node.after) or before
            chain.append(replace(node, name=f"{node.name} {copy}", after=after))
    return chain


def code_of(model: onnx.ModelProto, *, edges: str = "stages", **options: Any) -> CudaCode:
    """The kernels of a model, and its graph."""
    code = compile_graph(load_onnx(model), Options(target=f"cuda{{edges={edges}}}", **options)).code
    assert isinstance(code, CudaCode)
    return code


def convolution(shape: Sequence[int], batch: int = 1, *, groups: int = 1) -> onnx.ModelProto:
    """A convolution with its activation."""
    channels, filters, size, kernel, stride = shape
    draw = np.random.default_rng(0)
    shape_of_weights = (filters, channels // groups, kernel, kernel)
    weights = draw.standard_normal(shape_of_weights) / np.sqrt(channels * kernel**2)
    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["c"], "conv", pads=[kernel // 2] * 4, strides=[stride] * 2, group=groups
        ),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    return graph_of(nodes, {"x": (batch, channels, size, size)}, {"w": weights.astype(np.float32)})


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, Any],
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "benchmark", kinds, [result], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def quantised(
    shape: tuple[int, int, int, int],
    *,
    zero: int = 3,
    weight_zero: int = 0,
    signed: tuple[bool, bool] = (False, True),
    groups: int = 1,
) -> onnx.ModelProto:
    """A convolution of bytes: channels in and out, extent, window; `signed` are activations and weights."""
    channels, results, extent, window = shape
    draw = np.random.default_rng(channels)
    types = [np.int8 if is_signed else np.uint8 for is_signed in signed]
    lowest = -100 if signed[1] else 28
    kernel = (results, channels // groups, window, window)
    arrays = {
        "x_scale": np.float32(0.02),
        "x_zero": types[0](zero),
        "w": draw.integers(lowest, lowest + 200, kernel).astype(types[1]),
        "w_scale": np.float32(0.01),
        "w_zero": types[1](weight_zero),
        "y_scale": np.float32(0.04 * window * channels**0.5),
        "y_zero": types[0](5),
        "b": draw.integers(-999, 999, results).astype(np.int32),
    }
    pads = [window // 2] * 4
    node = helper.make_node("QLinearConv", ["x", *arrays], ["y"], "convolution", pads=pads, group=groups)
    kind = TensorProto.INT8 if signed[0] else TensorProto.UINT8
    x = helper.make_tensor_value_info("x", kind, (1, channels, extent, extent))
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "benchmark", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def attention(
    *,
    heads: int,
    groups: int,
    queries: int,
    keys: int,
    depth: int,
    channels: int | None = None,
    mask: tuple[int, ...] | None = None,
    is_causal: bool = False,
) -> onnx.ModelProto:
    """One attention, of whose keys several heads share each; with a mask, or none beyond the diagonal."""
    shapes = {
        "q": (1, heads, queries, depth),
        "k": (1, groups, keys, depth),
        "v": (1, groups, keys, channels or depth),
    }
    shapes |= {} if mask is None else {"mask": mask}
    node = helper.make_node("Attention", list(shapes), ["y"], "attention", is_causal=int(is_causal))
    return graph_of([node], shapes, {}, opset=23)


def forms() -> Iterator[tuple[str, onnx.ModelProto]]:
    """A model of each form of kernel."""
    yield "pointwise convolution", convolution((64, 64, 14, 1, 1))
    yield "convolution", convolution((32, 48, 9, 3, 1))
    yield "strided convolution", convolution((32, 32, 9, 3, 2))
    yield "stem", convolution((3, 16, 15, 7, 2))
    yield "depthwise", convolution((16, 16, 9, 3, 1), groups=16)
    yield "split sums", convolution((512, 32, 4, 3, 1))
    product = [helper.make_node("MatMul", ["a", "b"], ["y"], "product")]
    yield "batched product", graph_of(product, {"a": (2, 33, 40), "b": (2, 40, 24)}, {})
    yield "softmax", graph_of([helper.make_node("Softmax", ["x"], ["y"], "softmax")], {"x": (8, 200)}, {})
    pool = helper.make_node("AveragePool", ["x"], ["y"], "pool", kernel_shape=[3, 3], strides=[2, 2])
    yield "pooling", graph_of([pool], {"x": (1, 8, 9, 9)}, {})
    mean = helper.make_node("ReduceMean", ["x"], ["y"], "mean", axes=[1])
    yield "mean", graph_of([mean], {"x": (4, 1000)}, {})
    yield "quantised convolution", quantised((32, 48, 9, 3))
    yield "quantised split sums", quantised((512, 32, 4, 3), zero=0)
    yield "attention", attention(heads=4, groups=2, queries=40, keys=56, depth=32)


def expected_of(model: onnx.ModelProto) -> Any:
    """What is right for the one output."""
    return tw.compile(model, target="interpreter").run(None, feed_of(model))[0]


def feed_of(model: onnx.ModelProto) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    found = {}
    weights = {array.name for array in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in weights:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            is_float = dtype == np.float32
            numbers = draw.standard_normal(shape) if is_float else draw.integers(0, 256, shape)
            found[value.name] = numbers.astype(dtype)
    return found


# Sections.


def values(run: Run) -> None:
    """Every form in every accuracy against the interpreter: whether anything below counts."""
    for name, model in forms():
        if not run.wants(name):
            continue
        feed = feed_of(model)
        right = run.expected[name] if name in run.expected else expected_of(model)
        for accuracy, bound in ACCURACIES.items():
            with run.compiled(model, accuracy=accuracy) as (_, executable):
                (got,) = executable.run(feed).values()
            error = float(np.abs(got.astype(np.float64) - right).max() / np.abs(right).max())
            run.row(section="values", case=name, accuracy=accuracy, error=error, right=bool(error <= bound))


def latencies(run: Run) -> None:
    """Nodes that do nothing, as kernels and as joins: chains, branches, what a launch costs the host."""
    kernels = run.device.load([_EMPTY])
    empty = Launch("empty", (1, 1, 1), (32, 1, 1), ())
    works: dict[str, Launch | Join] = {"kernel": empty, "join": Join()}
    for kind, work in works.items():
        for branches in (1, 2, 4, 8):
            if not run.wants(f"{kind} {branches}"):
                continue
            length = 100 // branches
            nodes = [GraphNode("start", work)]
            ends = []
            for branch in range(branches):
                for place in range(length):
                    nodes.append(GraphNode(f"{branch}.{place}", work, (len(nodes) - 1 if place else 0,)))
                ends.append(len(nodes) - 1)
            nodes.append(GraphNode("end", work, tuple(ends)))
            times = run.graph_us(nodes, kernels)
            run.row(section="latencies", nodes=kind, branches=branches, length=length, times_us=times)
    graph = run.device.device.graph([GraphNode("one", empty)], kernels)
    times = []
    for _ in range(run.samples):
        start = time.perf_counter_ns()
        graph.launch()
        times.append((time.perf_counter_ns() - start) / 1e3)
        run.device.synchronise()
    run.row(section="latencies", nodes="host", times_us=times)
    graph.close()
    kernels.close()


def convolutions(run: Run) -> None:
    """Shapes of ResNet-50 and Inception, a copy behind the other, beside cuDNN's through torch."""
    for shape in CONVOLUTIONS:
        for accuracy in ACCURACIES:
            if not run.wants(shape):
                continue
            with run.compiled(convolution(shape), accuracy=accuracy):
                works, kernels = run.launches()
                ours = run.chain_us(works, kernels)
            facts = {"shape": shape, "accuracy": accuracy, "num_kernels": len(works)}
            blocks = [work.num_blocks for work in works]
            theirs = cudnn_us(run, shape, accuracy)
            run.row(section="convolutions", **facts, blocks=blocks, times_us=ours, cudnn_us=theirs)


def networks(run: Run) -> None:
    """Networks at batch 1 under each plan, beside torch eager, captured, and reduce-overhead."""
    for name in NETWORKS:
        if not run.wants(name):
            continue
        model = build(name)
        feed = feed_of(model)
        for plan, (edges, schedule) in PLANS.items():
            if run.is_late:
                return
            with run.compiled(model, schedule=schedule, edges=edges) as (_, executable):
                executable.run(feed)
                nodes, kernels = run.device.graphs[-1]
                times = run.graph_us(nodes, kernels)
                count = sum(isinstance(node.work, Launch) for node in nodes)
            run.row(section="networks", network=name, plan=plan, num_kernels=count, times_us=times)
        for peer, times in torch_us(run, name).items():
            run.row(section="networks", network=name, plan=peer, times_us=times)


def stages(run: Run) -> None:
    """Stages of a network, measured and estimated: whether a search may go by estimates.

    Of each, copies one after another in one graph, in turns with its kernels one by one.
    """
    if not run.wants(STAGES_OF):
        return
    with run.compiled(build(STAGES_OF), schedule="ios{moldable=true}") as (code, _):
        planned, partition = code.placed.planned.nodes, code.program.partition
        nodes, kernels = run.device.graphs[-1]
        first = len(code.program.graph.inputs)  # whose copies come before
        for number, stage in enumerate(code.program.schedule.stages[:_MOST_STAGES]):
            if run.is_late:
                return
            own = [first + i for i, node in enumerate(planned) if node.stage == number and node.work]
            if not own:
                continue
            place = {node: i for i, node in enumerate(own)}
            of_stage = [
                replace(nodes[i], after=tuple(place[j] for j in nodes[i].after if j in place)) for i in own
            ]
            graphs = [chained(of_stage), chained(in_a_row([node.work for node in of_stage]))]
            times, alone = run.graphs_us(graphs, kernels)
            groups = [[partition.subgraphs[i.subgraph_id] for i in g.instances] for g in stage.groups]
            run.row(
                section="stages",
                stage=number,
                kernels=[node.name for node in of_stage],
                num_groups=len(groups),
                estimate_us=code.costs.stage(groups, [g.num_cores for g in stage.groups]).time_ns / 1e3,
                times_us=[time_us / CHAIN for time_us in times],
                one_by_one_us=[time_us / CHAIN for time_us in alone],
            )


def tools(run: Run) -> None:
    """NVIDIA's checkers on the smallest cases, where they are installed."""
    checks = {
        "memcheck": ("compute-sanitizer", "--tool", "memcheck"),
        "racecheck": ("compute-sanitizer", "--tool", "racecheck"),
        "counters": ("ncu", "--launch-count", "3"),
    }
    for name, (tool, *options) in checks.items():
        if not run.wants(name) or shutil.which(tool) is None:
            continue
        inner = again("cuda", "--sections", "values", "--only", "convolution", "--output", "/dev/null")
        left = max(1.0, run.until - time.monotonic())
        done = subprocess.run(
            [tool, *options, *inner], capture_output=True, text=True, timeout=left, check=False
        )
        run.row(section="tools", tool=name, status=done.returncode, tail=done.stdout[-2000:])


SECTIONS = {
    "values": values,
    "latencies": latencies,
    "convolutions": convolutions,
    "networks": networks,
    "stages": stages,
    "tools": tools,
}


# Kernels assembled before.


def prepare(folder: Path, isa: str, only: str) -> int:
    """Assemble the kernels of every section, and compute the right values; returns how many kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / _EXPECTED, **{name: expected_of(model) for name, model in forms() if only in name})
    collector = Collector()
    wanted = [(name, model, list(ACCURACIES), ["sequential"]) for name, model in forms()]
    wanted += [(str(shape), convolution(shape), list(ACCURACIES), ["sequential"]) for shape in CONVOLUTIONS]
    if not only:
        wanted += [
            (name, build(name), ["default"], [schedule for _, schedule in PLANS.values()])
            for name in NETWORKS
        ]
    for name, model, accuracies, plans in wanted:
        for accuracy in accuracies if only in name else ():
            for schedule in plans:
                code_of(model, accuracy=accuracy, schedule=schedule).load_on(collector)
    texts = [_EMPTY.text, *collector.texts]
    for text, ptx in zip(texts, ptx_of(texts, gpu_isa(isa)), strict=True):
        (folder / _file_of(text, isa)).write_bytes(assembler.assembled(ptx, isa)[0])
    return len(texts)


def _file_of(text: str, isa: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()}.{isa}.cubin"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in lines: medians, and ratios to peers."""
    lines = []
    for row in rows:
        facts = [str(row.get(key)) for key in ("case", "shape", "network", "nodes", "stage") if key in row]
        facts += [str(row[key]) for key in ("accuracy", "plan", "branches") if key in row]
        if row.get("times_us"):
            facts.append(f"{statistics.median(row['times_us']):.1f} us")
        if "estimate_us" in row:
            one_by_one = statistics.median(row["one_by_one_us"])
            facts.append(f"estimated {row['estimate_us']:.1f}, kernels one by one {one_by_one:.1f}")
        if row.get("cudnn_us"):
            ratio = statistics.median(row["cudnn_us"]) / statistics.median(row["times_us"])
            facts.append(f"{ratio:.2f} x cuDNN's speed")
        if "error" in row:
            facts.append(
                f"error {row['error']}" if isinstance(row["error"], str) else f"error {row['error']:.1e}"
            )
        if row.get("right") is False:
            facts.append("WRONG")
        lines.append(f"{row['section']}: {', '.join(facts)}")
    return "\n".join(lines)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--device", choices=("driver", "emulated"), default="driver")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--output", default=Path("cuda.jsonl"))
    parser.add_argument("--minutes", default=8.0)
    parser.add_argument("--prepare", type=Path, help="assemble kernels into a folder, and end")
    parser.add_argument("--prepared", type=Path, help="a folder that --prepare made")
    parser.add_argument("--isa", default="sm_90", help="of --prepare")


def main(asked: Namespace) -> int:
    """Every section by its time limit; the number of those that failed, or gave wrong values."""
    if asked.prepare:
        print(f"{prepare(asked.prepare, asked.isa, asked.only)} modules assembled for {asked.isa}")
        return 0
    end = time.monotonic() + 60 * asked.minutes
    device = Recorded(open_device(asked.device, None), asked.prepared)
    kept = None if asked.prepared is None else asked.prepared / _EXPECTED
    expected = dict(np.load(kept)) if kept is not None and kept.exists() else {}
    run = Run(device, asked.output, asked.only, asked.samples, expected)
    facts = device.facts
    run.row(section="device", name=facts.name, isa=facts.isa, multiprocessors=facts.num_multiprocessors)
    failed = 0
    for name in asked.sections.split(","):
        run.until = min(end, time.monotonic() + LIMITS_S[name])
        try:
            SECTIONS[name](run)
        except Exception as error:  # one section's fault must not cost the others
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            run.row(
                section=name, error=f"{type(error).__name__}: {error}", where=f"{where.name}:{where.lineno}"
            )
    rows = [json.loads(line) for line in asked.output.read_text().splitlines()]
    print(summary(rows))
    return failed + sum(row.get("right") is False for row in rows)
