"""Compile time against the number of operators, and plans of networks of as many, within a budget.

`python -m benchmarks compile_scaling --page docs/compile_time.md` measures, writes the table between the
page's markers and the picture beside the page; `--sizes 1000,3000 --shapes chain,tree` measures less. Every
model is compiled from nothing, without the cache, in a process of its own; seconds are of processor time,
helper processes included, so that other work on the machine counts little.

`python -m benchmarks compile_scaling --machines v100,a310,stcp920 --budget 300s --sizes 10000` plans networks
for described machines instead, by the joint search: when the first plan was there, how long all took beside
the budget, what was gained by then, and the most memory. Budgets count processor time, too.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import SUPPRESS, Namespace, Parser, again
from benchmarks.joint import count_processor_time
from benchmarks.pictures import write_line_chart
from benchmarks.results import provenance, with_table
from tilewright.api import load, simulate
from tilewright.compiler import compile_graph
from tilewright.options import Options
from tilewright.report.figure import Line
from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import attention, conv_bn, dense, gelu, layer_norm

SIZES = (300, 1_000, 3_000, 10_000)
NETWORKS = ("cells", "wired", "transformer")
"""Shapes that are planned; compiled where they are named."""
NUM_ELEMENTS = 1_000
PICTURE = "compile_time.svg"


class Maker:
    """A graph of one input, grown node by node."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The result of a new node."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def constant(self, data: np.ndarray[Any, Any]) -> str:
        """A new initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    def model(self, result: str) -> onnx.ModelProto:
        """The model that gives `result`."""
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        made = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "shape", [given], [made], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain(num_nodes: int) -> onnx.ModelProto:
    """Operators of one operand, one after another."""
    m, value = Maker(NUM_ELEMENTS), "x"
    for i in range(num_nodes):
        value = m.add(("Relu", "Sigmoid", "Neg", "Tanh", "Abs")[i % 5], value)
    return m.model(value)


def newton(num_nodes: int) -> onnx.ModelProto:
    """`y = (y + x / y) * 0.5` again and again: each value has two readers."""
    m, y = Maker(NUM_ELEMENTS), "x"
    half = m.constant(np.array(0.5))
    for _ in range(num_nodes // 3):
        y = m.add("Mul", m.add("Add", y, m.add("Div", "x", y)), half)
    return m.model(y)


def fibonacci(num_nodes: int) -> onnx.ModelProto:
    """`a[i] = a[i-1] * a[i-2]`: no value is the only way on."""
    m = Maker(NUM_ELEMENTS)
    before, now = "x", m.add("Neg", "x")
    for _ in range(num_nodes - 1):
        before, now = now, m.add("Mul", now, before)
    return m.model(now)


def gated(num_nodes: int) -> onnx.ModelProto:
    """`h = h * sigmoid(h)` again and again."""
    m, h = Maker(NUM_ELEMENTS), "x"
    for _ in range(num_nodes // 2):
        h = m.add("Mul", h, m.add("Sigmoid", h))
    return m.model(h)


def tree(num_nodes: int) -> onnx.ModelProto:
    """One input times many constants, summed in pairs: all products are live together."""
    m, rng = Maker(64), np.random.default_rng(0)
    level = [m.add("Mul", "x", m.constant(rng.uniform(0, 1, 64))) for _ in range(num_nodes // 2)]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [m.add("Add", a, b) for a, b in pairs] + level[len(level) // 2 * 2 :]
    return m.model(level[0])


def mixed(num_nodes: int) -> onnx.ModelProto:
    """Element-wise operators, products and softmaxes at random, each of values made shortly before."""
    m, rng = Maker(8, 16), np.random.default_rng(0)
    weights = [m.constant(rng.standard_normal((16, 16)) / 4) for _ in range(4)]
    values, unread = ["x"], {"x": None}
    while len(m.nodes) < num_nodes:
        recent = values[-8:]
        a = recent[int(rng.integers(len(recent)))]
        kind = int(rng.integers(10))
        if kind < 4:
            b = next((v for v in unread if v != a), values[-1])
            made = m.add(("Add", "Mul", "Sub", "Max")[kind], a, b)
            unread.pop(b, None)
        elif kind < 8:
            made = m.add(("Relu", "Sigmoid", "Tanh", "Neg")[kind - 4], a)
        elif kind < 9:
            made = m.add("MatMul", a, weights[int(rng.integers(4))])
        else:
            made = m.add("Softmax", a, axis=-1)
        unread.pop(a, None)
        unread[made] = None
        values.append(made)
    total, *rest = unread
    for value in rest:
        total = m.add("Add", total, value)
    return m.model(total)


def cells(num_nodes: int) -> onnx.ModelProto:
    """Cells of NASNet-A (normal ones), each of the two before it, with unfused normalisation."""
    b = Builder("cells", seed=0)
    before = x = b.input("input", (1, 32, 28, 28))
    while b.num_nodes < num_nodes:
        with b.scope(f"cell{b.num_nodes}"):
            before, x = x, _cell(b, before, x)
    b.output(x, "features")
    return b.finish()


def _cell(b: Builder, before: Tensor, x: Tensor) -> Tensor:
    other, own = (
        conv_bn(b, b.relu(value), 32, 1, names=(f"{name}.conv", f"{name}.bn"))
        for name, value in (("before", before), ("own", x))
    )
    pooled = b.avg_pool(other, 3, stride=1, padding=1)
    terms = (
        (_separable(b, own, 3), own),
        (_separable(b, other, 3), _separable(b, own, 5)),
        (b.avg_pool(own, 3, stride=1, padding=1), other),
        (pooled, pooled),
        (_separable(b, other, 5), _separable(b, other, 3)),
    )
    return b.concat([other, *(b.add(one, two) for one, two in terms)])


def _separable(b: Builder, x: Tensor, kernel: int, times: int = 2) -> Tensor:
    for _ in range(times):
        channels = x.channels
        y = b.conv(b.relu(x), channels, kernel, padding=kernel // 2, groups=channels, name="depthwise")
        x = conv_bn(b, y, channels, 1, names=("pointwise", "bn"))
    return x


def wired(num_nodes: int) -> onnx.ModelProto:
    """Separable convolutions wired at random, as RandWire's: each of a sum of one to three values before."""
    b, rng = Builder("wired", seed=0), np.random.default_rng(0)
    values = [b.input("input", (1, 32, 28, 28))]
    unread = dict.fromkeys(values)
    while b.num_nodes < num_nodes:
        recent = values[-8:]
        chosen = rng.choice(len(recent), size=min(int(rng.integers(1, 4)), len(recent)), replace=False)
        total, *others = (recent[i] for i in sorted(map(int, chosen)))
        for value in (total, *others):
            unread.pop(value, None)
        for value in others:
            total = b.add(total, value)
        made = _separable(b, total, 3, times=1)
        unread[made] = None
        values.append(made)
    total, *others = unread
    for value in others:
        total = b.add(total, value)
    b.output(total, "features")
    return b.finish()


def transformer(num_nodes: int) -> onnx.ModelProto:
    """Layers of an encoder as exporters write them, with normalisation, GELU and attention spelled out."""
    b = Builder("transformer", seed=0)
    x = b.input("input", (1, 64, 128))
    while b.num_nodes < num_nodes:
        with b.scope(f"layer{b.num_nodes}"):
            y = attention(b, layer_norm(b, x, eps=1e-5, name="norm1"), heads=4)
            x = b.add(x, dense(b, y, 128, name="out"))
            y = gelu(b, dense(b, layer_norm(b, x, eps=1e-5, name="norm2"), 512, name="up"))
            x = b.add(x, dense(b, y, 128, name="down"))
    b.output(x, "states")
    return b.finish()


SHAPES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "newton": newton,
    "fibonacci": fibonacci,
    "gated": gated,
    "tree": tree,
    "mixed": mixed,
    "cells": cells,
    "wired": wired,
    "transformer": transformer,
}


def processor_s() -> float:
    """Processor time of this process and of helpers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(shape: str, num_nodes: int) -> dict[str, Any]:
    """One model compiled from nothing."""
    compile_graph(load(SHAPES[shape](6)).graph, Options(no_cache=True))  # imports, LLVM's start
    proto = SHAPES[shape](num_nodes)
    start_s = processor_s()
    loaded = load(proto)
    loaded_s, clock_s = processor_s(), time.monotonic()
    made = compile_graph(loaded.graph, Options(no_cache=True))
    return {
        "shape": shape,
        "num_nodes": len(proto.graph.node),
        "load_processor_s": round(loaded_s - start_s, 3),
        "compile_processor_s": round(processor_s() - loaded_s, 3),
        "compile_wall_s": round(time.monotonic() - clock_s, 3),
        "phase_wall_s": {name: round(seconds, 3) for name, seconds in made.phase_s.items()},
        "num_steps": len(made.steps),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def measure_plan(shape: str, num_nodes: int, machine: str, budget: str) -> dict[str, Any]:
    """The joint plan of a network on a machine within a budget of processor time."""
    count_processor_time()
    proto = SHAPES[shape](num_nodes)
    start_s = processor_s()
    loaded = load(proto)
    loaded_s = processor_s()
    better: list[tuple[float, str]] = []

    def note(what: str, done: int, total: int) -> None:
        _, _, best = what.partition("best so far: ")
        if best and (not better or better[-1][1] != best):
            better.append((processor_s() - loaded_s, best))

    found = simulate(loaded, machine, recipe="joint", budget=budget, progress=note)
    costs = [tried.cost for tried in found.tried if tried.cost is not None]
    return {
        "shape": shape,
        "num_nodes": len(proto.graph.node),
        "machine": machine,
        "budget": budget,
        "load_processor_s": round(loaded_s - start_s, 2),
        "plan_processor_s": round(processor_s() - loaded_s, 2),
        "first_s": round(better[0][0], 2) if better else None,
        "better": [(round(s, 1), text) for s, text in better],
        "first_us": costs[0] * 1e-3,
        "us": found.time_s * 1e6,
        "recipe": found.recipe,
        "bound_us": found.lower_bound_s * 1e6,
        "num_tried": len(found.tried),
        "num_untried": found.num_untried,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def plan_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each network and machine."""
    lines = [
        "| network | nodes | machine | loaded, s | first plan, s | budget | planned, s | first, us "
        "| best, us | at least, us | recipes | MiB |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        first = "-" if r["first_s"] is None else f"{r['first_s']:.1f}"
        cells = (
            r["shape"], f"{r['num_nodes']:,}", f"`{r['machine']}`", f"{r['load_processor_s']:.1f}", first,
            r["budget"], f"{r['plan_processor_s']:.1f}", f"{r['first_us']:,.0f}", f"{r['us']:,.0f}",
            f"{r['bound_us']:,.0f}", str(r["num_tried"]), f"{r['peak_mib']:,}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def slope(rows: Sequence[Mapping[str, Any]]) -> float:
    """Exponent of the number of nodes, between the two largest models: 1 is linear."""
    a, b = sorted(rows, key=lambda r: int(r["num_nodes"]))[-2:]
    return math.log(b["compile_processor_s"] / a["compile_processor_s"]) / math.log(
        b["num_nodes"] / a["num_nodes"]
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each shape, a column for each size."""
    sizes = sorted({int(r["asked"]) for r in rows})
    lines = [
        "| shape | " + " | ".join(f"{size:,} operators" for size in sizes) + " | exponent | launches | MiB |",
        "|---|" + "---:|" * (len(sizes) + 3),
    ]
    for shape in dict.fromkeys(r["shape"] for r in rows):
        own = {r["asked"]: r for r in rows if r["shape"] == shape}
        cells = [f"{own[s]['compile_processor_s']:.2f}" if s in own else "" for s in sizes]
        last = own[max(own)]
        power = f"{slope(list(own.values())):.2f}" if len(own) > 1 else ""
        lines.append(
            f"| {shape} | {' | '.join(cells)} | {power} | {last['num_steps']:,} | {last['peak_mib']:,} |"
        )
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--shapes", help="names, by commas; for machines networks alone by default")
    parser.add_argument("--sizes", help="numbers of operators, by commas")
    parser.add_argument("--machines", help="plan for these instead, by commas")
    parser.add_argument("--budget", default="300s", help="of processor time, for each plan")
    parser.add_argument("--output", help="JSON file of the samples")
    parser.add_argument("--page")
    parser.add_argument("--one", nargs="+", help=SUPPRESS)


def main(arguments: Namespace) -> None:
    """Measure, print, and write what was asked for."""
    if arguments.one:
        shape, size, *asked = arguments.one
        row = measure_plan(shape, int(size), *asked) if asked else measure(shape, int(size))
        print(json.dumps(row))
        return
    machines = arguments.machines.split(",") if arguments.machines else []
    known = NETWORKS if machines else [name for name in SHAPES if name not in NETWORKS]
    shapes = arguments.shapes.split(",") if arguments.shapes else known
    sizes = arguments.sizes.split(",") if arguments.sizes else ["10000"] if machines else map(str, SIZES)
    rows: list[dict[str, Any]] = []
    asked = [(name, arguments.budget) for name in machines] or [()]
    for size, shape, more in itertools.product(sizes, shapes, asked):
        command = again("compile_scaling", "--one", shape, size, *more)
        made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append({**provenance(), "asked": int(size), **json.loads(made.stdout.splitlines()[-1])})
        print(json.dumps(rows[-1]), flush=True)
    rows.sort(key=lambda r: (list(SHAPES).index(r["shape"]), r["asked"]))
    text = plan_table(rows) if machines else table(rows)
    print(text)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.page and machines:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "plans"))
    elif arguments.page:
        lines = [
            Line(
                shape, tuple((r["num_nodes"], r["compile_processor_s"]) for r in rows if r["shape"] == shape)
            )
            for shape in dict.fromkeys(r["shape"] for r in rows)
        ]
        write_line_chart(arguments.page.parent / PICTURE, "operators", "processor seconds", lines)
        arguments.page.write_text(with_table(arguments.page.read_text(), text))
