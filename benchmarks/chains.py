"""What joint tilings of chains save: words past the outermost level of every chain of three networks.

`python -m benchmarks chains --out chains.jsonl --seconds 600` appends a JSON line for each network and
machine that the file lacks, and begins none after so many seconds. With `--objective energy` or `latency`
these count instead, of the chains in `SELECTED` alone, whose operators are taken from the lines on traffic.

`python -m benchmarks chains --accelforge VENV/bin/python` prints the least bytes past one buffer of chains of
products and of convolutions beside those of AccelForge (PyPI, in an environment of its own) for the same
shapes and buffers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of
from tilewright.zoo import build

NETWORKS = ("mobilenet_v2", "resnet50", "bert_base")
MACHINES = ("eyeriss", "simba-cosa-repo", "tpu-v1")
SELECTED = {
    "resnet50": ("layer1.0.conv1", "layer1.1.conv1"),
    "mobilenet_v2": ("features.3.conv.0.0", "features.8.conv.0.0"),
    "bert_base": (
        "encoder.layer.0.attention.self.query.matmul",
        "encoder.layer.0.intermediate.dense.matmul",
    ),
}
"""Six chains by their first operators."""

PRODUCTS = (
    (2, 64, 64, (1024, 2048, 3000, 4096, 8192, 16384)),
    (2, 48, 100, (1000, 3000, 5000)),
    (2, 37, 53, (700, 1500)),
    (3, 64, 64, (2048, 4096, 8192, 16384)),
    (3, 60, 36, (1000, 4000)),
    (4, 64, 64, (4096, 8192)),
    (4, 36, 48, (1000, 3000)),
)
"""Chains beside AccelForge: matrix products, rows, columns, and buffers in bytes."""
CONVOLUTIONS = (
    ((4, 8, 4), (3, 3), 6, (128, 256, 512)),
    ((8, 16, 8), (1, 3), 8, (256, 1024)),
    ((4, 8, 8, 4), (1, 3, 1), 6, (200, 500)),
)
"""The same of convolutions: channels, windows, rows and columns of the result."""

BUFFER = """\
name: one-buffer
description: A buffer before main memory, of which only traffic counts.
clock_hz: {{value: 1 GHz, source: "assumed: words count alone"}}
num_cores_per_cluster: {{value: 1, source: "assumed: words count alone"}}
levels:
  - {{name: Buffer, per: core, capacity_bytes: {capacity_bytes}, word_bits: 8, source: "assumed: as asked"}}
  - {{name: DRAM, per: machine, capacity_bytes: 4 GiB, word_bits: 8, has_shared_port: true,
     read_bytes_per_cycle: 16, write_bytes_per_cycle: 16, source: "assumed: words count alone"}}
units:
  - {{name: MAC, kind: matrix, level: Buffer, runs: [contraction], macs_per_cycle: {{int8: 1}},
     source: "assumed: words count alone"}}
"""

PEER = """
import json, sys, time
import accelforge as af
from accelforge.mapper import Metrics
from accelforge.mapper.FFM.main import map_workload_to_arch
from accelforge.util.parallel import set_n_parallel_jobs
set_n_parallel_jobs(1)
for workload, capacity_bytes in json.loads(sys.argv[1]):
    spec = af.Spec.from_yaml(af.examples.arches.simple, workload)
    spec.arch.find("GlobalBuffer").size = 8 * capacity_bytes
    for name in ("GlobalBuffer", "MAC"):
        for action in spec.arch.find(name).actions:
            action.energy = 0  # what is left is one for each bit of main memory
    spec.mapper.metrics = Metrics.ENERGY
    begun = time.process_time()
    found = map_workload_to_arch(spec, eval_in_detail=False, print_progress=False)
    least = float(found.data["Total<SEP>energy"].min()) / 8
    print(json.dumps((least, time.process_time() - begun)), flush=True)
"""
"""Prints the least bytes of main memory for each chain, and the processor seconds of one thread for it."""


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--out", type=Path)
    parser.add_argument("--accelforge", help="Python of an environment that has AccelForge")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--budget", default="2s", help="of each joint tiling that is searched")
    parser.add_argument("--objective", default="traffic", choices=("traffic", "latency", "energy"))
    parser.add_argument("--machines", default=",".join(MACHINES))


def main(arguments: Namespace) -> None:
    """Map the chains that are missing in the file, or those that are held beside AccelForge."""
    if arguments.accelforge:
        beside_accelforge(arguments.accelforge, arguments.budget)
        return
    if arguments.out is None:
        raise SystemExit("give --out FILE for the lines, or --accelforge PYTHON")
    rows = rows_of(arguments.out)
    known = {(row["network"], row["machine"], row["objective"], row["first"]) for row in rows}
    end = time.monotonic() + arguments.seconds
    for network, first, nodes in asked(arguments.objective, rows):
        for machine in arguments.machines.split(","):
            if (network, machine, arguments.objective, first) in known or time.monotonic() > end:
                continue
            begun = time.process_time()
            result = tw.map_chain(
                build(network), machine, nodes=nodes, objective=arguments.objective, budget=arguments.budget
            )
            document = result.to_json()
            row = {
                "network": network,
                "first": first,
                "machine": machine,
                "objective": arguments.objective,
                "seconds": time.process_time() - begun,
                "total": document["total"],
                "chains": document["chains"],
            }
            append_row(arguments.out, row)
            print(result)


def asked(
    objective: str, rows: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str | None, list[str] | None]]:
    """(Network, the first operator of a chain, all its operators), or whole networks where traffic counts."""
    for network in NETWORKS:
        if objective == "traffic":
            yield network, None, None
            continue
        chains = next(row["chains"] for row in rows if row["network"] == network and row["first"] is None)
        for chain in chains:
            nodes = [node for part in chain["parts"] for node in part["nodes"]]
            if nodes[0] in SELECTED[network]:
                yield network, nodes[0], nodes


def beside_accelforge(python: str, budget: str) -> None:
    """Print a line for each chain: least bytes there and here, jointly and one by one, processor seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chains = list(_chains(folder))
        command = [python, "-c", PEER, json.dumps([(file, size) for _, file, _, size in chains])]
        print(
            "| chain | buffer, bytes | AccelForge, bytes | here | one by one | here / AccelForge | proven "
            "| here, s | AccelForge, s |"
        )
        print("|---|---:|---:|---:|---:|---:|---|---:|---:|")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as peer:
            assert peer.stdout is not None
            for what, _, model, capacity_bytes in chains:
                line = peer.stdout.readline()
                if not line:
                    raise SystemExit(f"{python} gave no answer: it needs the package accelforge")
                machine = folder / "one-buffer.yaml"
                machine.write_text(BUFFER.format(capacity_bytes=capacity_bytes))
                begun = time.process_time()
                found = tw.map_chain(model, str(machine), objective="traffic", budget=budget)
                seconds = time.process_time() - begun
                document = found.to_json()
                theirs, peer_seconds = json.loads(line)
                ours, separate = (document["total"][n]["moved_words"] for n in ("fused", "separate"))
                proven = "yes" if document["chains"][0]["optimal_among"] else "no"
                print(
                    f"| {what} | {capacity_bytes:,} | {theirs:,.0f} | {ours:,} | {separate:,} "
                    f"| {ours / theirs:.2f} | {proven} | {seconds:.2f} | {peer_seconds:.2f} |",
                    flush=True,
                )


def _chains(folder: Path) -> Iterator[tuple[str, str, onnx.ModelProto, int]]:
    """(Chain in words, AccelForge's file of it, the model, bytes of the buffer)."""
    number = 0
    for count, rows, columns, sizes in PRODUCTS:
        dims = {"m": rows} | {f"n{i}": columns for i in range(count + 1)}
        einsums = [(["m", f"n{i}"], [f"n{i}", f"n{i + 1}"], ["m", f"n{i + 1}"]) for i in range(count)]
        file = _workload(folder / f"{number}.yaml", dims, einsums)
        model = products(count, rows, columns)
        number += 1
        for size in sizes:
            yield f"{count} products of {rows} x {columns} by {columns} x {columns}", file, model, size
    for channels, windows, side, sizes in CONVOLUTIONS:
        last = len(windows)
        dims = {f"c{k}": extent for k, extent in enumerate(channels)}
        einsums = []
        for k, window in enumerate(windows):
            out = side + sum(windows[k + 1 :]) - (last - k - 1)
            dims |= {f"{axis}{k + 1}": out for axis in "pq"} | {f"{axis}{k}": window for axis in "rs"}
            read = {f"C{k}": f"c{k}", f"P{k}": f"p{k + 1} + r{k}", f"Q{k}": f"q{k + 1} + s{k}"}
            weight = [f"c{k}", f"c{k + 1}", f"r{k}", f"s{k}"]
            einsums.append((read, weight, [f"c{k + 1}", f"p{k + 1}", f"q{k + 1}"]))
        file = _workload(folder / f"{number}.yaml", dims, einsums)
        number += 1
        what = f"convolutions of {', '.join(map(str, windows))}, channels {', '.join(map(str, channels))}"
        for size in sizes:
            yield f"{what}, {side} x {side}", file, convolutions(channels, windows, side), size


def _workload(file: Path, dims: dict[str, int], einsums: Sequence[tuple[Any, Any, Any]]) -> str:
    """A file of AccelForge's: extents of dims, and of each operator what it reads and writes."""
    listed = []
    for k, (read, weight, written) in enumerate(einsums):
        accesses = [
            {"name": f"T{k}", "projection": read},
            {"name": f"W{k}", "projection": weight},
            {"name": f"T{k + 1}", "projection": written, "output": True},
        ]
        renames = {"weight": f"W{k}", "input": f"T{k}", "output": f"T{k + 1}"}
        listed.append({"name": f"Operator{k}", "tensor_accesses": accesses, "renames": renames})
    workload = {
        "iteration_space_shape": {name: f"0 <= {name} < {extent}" for name, extent in dims.items()},
        "bits_per_value": {"All": 8},
        "einsums": listed,
    }
    file.write_text(json.dumps({"workload": workload}))  # YAML, too
    return str(file)


def products(count: int, rows: int, columns: int) -> onnx.ModelProto:
    """So many products, each of the one before and a square weight."""
    weights = [np.ones((columns, columns), np.float32)] * count
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(count)]
    return _model(nodes, weights, (rows, columns), (rows, columns))


def convolutions(channels: Sequence[int], windows: Sequence[int], side: int) -> onnx.ModelProto:
    """Convolutions without padding, one behind the other."""
    pairs = zip(channels, channels[1:], windows, strict=False)
    weights = [np.ones((after, before, window, window), np.float32) for before, after, window in pairs]
    nodes = [helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(len(windows))]
    first = side + sum(windows) - len(windows)
    return _model(nodes, weights, (1, channels[0], first, first), (1, channels[-1], side, side))


def _model(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[np.ndarray[Any, Any]],
    first: Sequence[int],
    last: Sequence[int],
) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("t0", first), (f"t{len(nodes)}", last))
    ]
    initializers = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    graph = helper.make_graph(list(nodes), "chain", ends[:1], ends[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
