"""Compile time against the number of operators, for six shapes of graphs.

`python -m benchmarks compile_scaling --page docs/compile_time.md` measures, writes the table between the
page's markers and the picture beside the page; `--sizes 1000,3000 --shapes chain,tree` measures less. Every
model is compiled from nothing, without the cache, in a process of its own; seconds are of processor time,
helper processes included, so that other work on the machine counts little.
"""

from __future__ import annotations

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
from benchmarks.pictures import write_line_chart
from benchmarks.results import provenance, with_table
from tilewright.api import load
from tilewright.compiler import compile_graph
from tilewright.options import Options
from tilewright.report.figure import Line

SIZES = (300, 1_000, 3_000, 10_000)
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


SHAPES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "newton": newton,
    "fibonacci": fibonacci,
    "gated": gated,
    "tree": tree,
    "mixed": mixed,
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
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--output", help="JSON file of the samples")
    parser.add_argument("--page")
    parser.add_argument("--one", nargs=2, help=SUPPRESS)


def main(arguments: Namespace) -> None:
    """Measure, print, and write what was asked for."""
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    rows: list[dict[str, Any]] = []
    for size in map(int, arguments.sizes.split(",")):
        for shape in arguments.shapes.split(","):
            command = again("compile_scaling", "--one", shape, str(size))
            made = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({**provenance(), "asked": size, **json.loads(made.stdout.splitlines()[-1])})
            print(json.dumps(rows[-1]), flush=True)
    rows.sort(key=lambda r: (list(SHAPES).index(r["shape"]), r["asked"]))
    text = table(rows)
    print(text)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.page:
        lines = [
            Line(
                shape, tuple((r["num_nodes"], r["compile_processor_s"]) for r in rows if r["shape"] == shape)
            )
            for shape in dict.fromkeys(r["shape"] for r in rows)
        ]
        write_line_chart(arguments.page.parent / PICTURE, "operators", "processor seconds", lines)
        arguments.page.write_text(with_table(arguments.page.read_text(), text))
