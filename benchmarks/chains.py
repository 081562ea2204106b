"""What joint tilings of chains save: words past the outermost level of every chain of three networks.

`python -m benchmarks chains --out chains.jsonl --seconds 600` appends a JSON line for each network and
machine that the file lacks, and begins none after so many seconds. With `--objective energy` or `latency`
these count instead, of the chains in `SELECTED` alone, whose operators are taken from the lines on traffic.

`python -m benchmarks chains --accelforge VENV/bin/python` prints the least bytes past one buffer of chains of
products beside those of AccelForge (PyPI, in an environment of its own) for the same shapes and buffers.
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

PRODUCTS = tuple((count, 64, kib << 10) for count in (2, 3) for kib in (2, 4, 8, 16))
"""Chains beside AccelForge: products of square matrices, their side, and the buffer in bytes."""

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
import json, sys
import accelforge as af
from accelforge.mapper import Metrics
from accelforge.mapper.FFM.main import map_workload_to_arch
for count, side, capacity_bytes in json.loads(sys.argv[1]):
    shape = {"N_EINSUMS": count, "M": side, "KN": side}
    spec = af.Spec.from_yaml(af.examples.arches.simple, af.examples.workloads.matmuls, jinja_parse_data=shape)
    spec.arch.find("GlobalBuffer").size = 8 * capacity_bytes
    for name in ("GlobalBuffer", "MAC"):
        for action in spec.arch.find(name).actions:
            action.energy = 0  # what is left is one for each bit of main memory
    spec.mapper.metrics = Metrics.ENERGY
    found = map_workload_to_arch(spec, eval_in_detail=False, print_progress=False)
    print(json.dumps(float(found.data["Total<SEP>energy"].min()) / 8), flush=True)
"""
"""Prints the least bytes of main memory for each chain."""


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
    """Print a line for each chain of products: least bytes there and here, jointly and one by one."""
    command = [python, "-c", PEER, json.dumps(PRODUCTS)]
    print("| products | side | buffer, KiB | AccelForge, bytes | here | one by one | here / AccelForge |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as peer,
        tempfile.TemporaryDirectory() as folder,
    ):
        assert peer.stdout is not None
        for count, side, capacity_bytes in PRODUCTS:
            line = peer.stdout.readline()
            if not line:
                raise SystemExit(f"{python} gave no answer: it needs the package accelforge")
            machine = Path(folder) / "one-buffer.yaml"
            machine.write_text(BUFFER.format(capacity_bytes=capacity_bytes))
            found = tw.map_chain(products(count, side), str(machine), objective="traffic", budget=budget)
            total, theirs = found.to_json()["total"], float(line)
            ours, separate = (total[name]["moved_words"] for name in ("fused", "separate"))
            print(
                f"| {count} | {side} | {capacity_bytes >> 10} | {theirs:,.0f} | {ours:,} | {separate:,} "
                f"| {ours / theirs:.2f} |",
                flush=True,
            )


def products(count: int, side: int) -> onnx.ModelProto:
    """So many products of square matrices, each of the one before and a weight."""
    weight = np.ones((side, side), np.float32)
    weights = [numpy_helper.from_array(weight, f"w{i}") for i in range(count)]
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(count)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (side, side)) for name in ("t0", f"t{count}")
    ]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
