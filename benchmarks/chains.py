"""What joint tilings of chains save: words past the outermost level of every chain of three networks.

`python benchmarks/chains.py --out chains.jsonl --seconds 600` appends a JSON line for each network and
machine that the file lacks, and begins none after so many seconds. With `--objective energy` or `latency`
what steps do is mapped, too.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import tilewright as tw
from tilewright.zoo import build

NETWORKS = ("mobilenet_v2", "resnet50", "bert_base")
MACHINES = ("eyeriss", "simba-cosa-repo", "tpu-v1")


def main() -> None:
    """Map the chains that are missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--budget", default="2s", help="of each joint tiling that is searched")
    parser.add_argument("--objective", default="traffic", choices=("traffic", "latency", "energy"))
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    known = {(row["network"], row["machine"], row["objective"]) for row in map(json.loads, lines)}
    end = time.monotonic() + arguments.seconds
    for network in NETWORKS:
        for machine in MACHINES:
            if (network, machine, arguments.objective) in known or time.monotonic() > end:
                continue
            begun = time.process_time()
            result = tw.map_chain(
                build(network), machine, objective=arguments.objective, budget=arguments.budget
            )
            document = result.to_json()
            row = {
                "network": network,
                "machine": machine,
                "objective": arguments.objective,
                "seconds": time.process_time() - begun,
                "total": document["total"],
                "chains": document["chains"],
            }
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(result)


if __name__ == "__main__":
    main()
