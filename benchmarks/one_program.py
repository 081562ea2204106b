"""The search over plans of one program: what it reaches after so many trials, beside portfolio and bound.

`python -m benchmarks one_program --cells squeezenet1_1:1:stcp920,mobilenet_v2:1:ipu-mk2 --trials 300` prints
a line of a table for each network, batch and machine. Equal arguments give equal lines, but for processor
seconds.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

import onnx

import tilewright as tw
from benchmarks.command import Namespace, Parser
from tilewright import zoo

CELLS = "squeezenet1_1:1:stcp920,squeezenet1_1:16:stcp920,mobilenet_v2:1:stcp920,squeezenet1_1:1:ipu-mk2"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--recipe", choices=("search", "joint"), default="search")


def main(arguments: Namespace) -> None:
    """Print the table."""
    print(
        "| network, batch, machine | portfolio, us | 100 trials | all | x | bound | gap left | processor, s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for cell in arguments.cells.split(","):
        name, batch, machine = cell.split(":")
        print(line(name, int(batch), machine, arguments.trials, arguments.recipe), flush=True)


def line(name: str, batch: int, machine: str, trials: int, recipe: str) -> str:
    """One network on one machine."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save_model(zoo.build(name, batch=batch), path)
        result = tw.simulate(str(path), machine, recipe=recipe, budget=f"{trials}trials")
    before, within = [], []
    for tried in result.tried:
        if tried.time_s is None:
            continue
        number = re.match(r"search (\d+):", tried.recipe)
        if number is None:
            before.append(tried.time_s)
        elif int(number[1]) <= 100:
            within.append(tried.time_s)
    start_s = min(before)
    after_s = min([start_s, *within])
    bound_s = max([result.lower_bound_s, *(bound.value * 1e-9 for bound in result.bounds or ())])
    return (
        f"| {name}, {batch}, `{machine}` | {start_s * 1e6:.1f} | {after_s * 1e6:.1f} "
        f"| {result.time_s * 1e6:.1f} | {start_s / result.time_s:.2f} "
        f"| {bound_s * 1e6:.1f} | {100 * (result.time_s / bound_s - 1):.0f} % "
        f"| {time.process_time() - begun:.0f} |"
    )
