"""What joint tilings of chains save: words past the outermost level of every chain of three networks.

`python -m benchmarks chains --out chains.jsonl --seconds 600` appends a JSON line for each network and
machine that the file lacks, and begins none after so many seconds. With `--objective energy` or `latency`
these count instead, of the chains in `SELECTED` alone, whose operators are taken from the lines on traffic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--budget", default="2s", help="of each joint tiling that is searched")
    parser.add_argument("--objective", default="traffic", choices=("traffic", "latency", "energy"))
    parser.add_argument("--machines", default=",".join(MACHINES))


def main(arguments: Namespace) -> None:
    """Map the chains that are missing in the file."""
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
