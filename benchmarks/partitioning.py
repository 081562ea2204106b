"""Seconds of partitioning against the number of operators, for AGO's rules beside the layerwise one.

`python -m benchmarks partitioning` measures the shapes of `compile_scaling.py` and two more: `encoder`,
layers of a transformer that all read one mask, and `hourglass`, images that become smaller and larger again
with an edge from each size to its like. `--sizes 300,2000 --shapes mixed` measures less, `--output` writes
the samples. Seconds are of processor time, the whole of `solve`; the exponent is between the two largest
sizes, 1 is linear.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from benchmarks.command import Namespace, Parser
from benchmarks.compile_scaling import SHAPES, Maker
from benchmarks.results import provenance
from tilewright.api import load
from tilewright.families import PARTITIONERS
from tilewright.partition import Partition, PartitionProblem, check_partition
from tilewright.planning import Budget

SIZES = (2_000, 6_000, 20_000)
PARTITIONERS_MEASURED = ("layerwise", "ago", "ago{accept=affix}")


def encoder(num_nodes: int) -> onnx.ModelProto:
    """Products, a softmax and sums around them, layer by layer, with one mask for all."""
    m, rng = Maker(16, 16), np.random.default_rng(0)
    weights = [m.constant(rng.standard_normal((16, 16)) / 4) for _ in range(6)]
    mask = m.add("Neg", m.add("Sigmoid", "x"))
    h = m.add("Relu", "x")
    for _ in range(num_nodes // 17):
        q, k, v = (m.add("MatMul", h, w) for w in weights[:3])
        scores = m.add("Add", m.add("MatMul", q, m.add("Transpose", k)), mask)
        mixed = m.add("MatMul", m.add("MatMul", m.add("Softmax", scores), v), weights[3])
        h = m.add("Tanh", m.add("Add", h, mixed))
        inner = m.add("Sigmoid", m.add("MatMul", h, weights[4]))
        h = m.add("Tanh", m.add("Add", h, m.add("MatMul", inner, weights[5])))
    return m.model(h)


def hourglass(num_nodes: int) -> onnx.ModelProto:
    """Each value on the way down is added on the way up."""
    m = Maker(1_000)
    value, down = "x", []
    for i in range(num_nodes // 4):
        value = m.add("Relu", m.add(("Sigmoid", "Tanh", "Neg")[i % 3], value))
        down.append(value)
    for other in reversed(down):
        value = m.add("Tanh", m.add("Add", value, other))
    return m.model(value)


ALL_SHAPES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **SHAPES,
    "encoder": encoder,
    "hourglass": hourglass,
}


def measure(shape: str, num_nodes: int) -> list[dict[str, Any]]:
    """One graph by each partitioner."""
    graph = load(ALL_SHAPES[shape](num_nodes)).graph
    rows = []
    for name in PARTITIONERS_MEASURED:
        problem, partitioner = PartitionProblem(graph), PARTITIONERS.get(name)
        gc.collect()  # what loading left is not the partitioner's
        start_s = time.process_time()
        partition = partitioner.solve(problem, Budget())
        seconds = time.process_time() - start_s
        assert isinstance(partition, Partition)
        assert check_partition(problem, partition) == ()
        rows.append(
            {
                **provenance(),
                "shape": shape,
                "num_nodes": len(graph.nodes),
                "partitioner": name,
                "processor_s": round(seconds, 3),
                "num_subgraphs": len(partition.subgraphs),
            }
        )
    return rows


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--shapes", default=",".join(ALL_SHAPES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--output", help="JSON file of the samples")


def main(arguments: Namespace) -> None:
    """Measure and print."""
    measure("mixed", 100)  # imports, what is remembered of operators
    rows: list[dict[str, Any]] = []
    sizes = [int(size) for size in arguments.sizes.split(",")]
    print(
        "| shape | partitioner | " + " | ".join(f"{size:,}" for size in sizes) + " | exponent | subgraphs |"
    )
    print("|---|---|" + "---:|" * (len(sizes) + 2))
    for shape in arguments.shapes.split(","):
        found = [measure(shape, size) for size in sizes]
        rows += [row for by_size in found for row in by_size]
        for number, name in enumerate(PARTITIONERS_MEASURED):
            own = [by_size[number] for by_size in found]
            power = ""
            if len(own) > 1:
                a, b = own[-2:]
                ratio = max(b["processor_s"], 1e-3) / max(a["processor_s"], 1e-3)
                power = f"{math.log(ratio) / math.log(b['num_nodes'] / a['num_nodes']):.2f}"
            cells = " | ".join(f"{row['processor_s']:.2f}" for row in own)
            print(f"| {shape} | `{name}` | {cells} | {power} | {own[-1]['num_subgraphs']:,} |", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
