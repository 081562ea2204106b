"""What the processor's cost model says of networks of the zoo beside what they take.

    python -m benchmarks cpu_costs --networks resnet50,bert_base --threads 1,2

One thread is measured by its processor time, which other programs disturb least; several by the time that
passes, on an idle machine. Of all runs the least counts. Prints a table for docs/tuning.md.
"""

from __future__ import annotations

import time

import tilewright as tw
from benchmarks.command import Namespace, Parser
from tilewright import zoo

NETWORKS = (
    "resnet18", "resnet50", "inception_v3", "densenet121", "yolov5s", "vgg16", "mobilenet_v2",
    "squeezenet1_1", "shufflenet_v2_x1_0", "bert_tiny", "minilm_l6", "bert_base",
)  # fmt: skip


def row(name: str, num_threads: int, duration_s: float) -> str:
    """A line of the table."""
    model = zoo.build(name)
    clock = time.process_time if num_threads == 1 else time.perf_counter
    with tw.compile(model, threads=num_threads) as compiled:
        estimate_ms = compiled.schedule.quality.cost / 1e6
        feed = zoo.example_inputs(model, 0)
        compiled.run(None, feed)
        least_ms = float("inf")
        ends_s = time.monotonic() + duration_s
        while time.monotonic() < ends_s:
            start_s = clock()
            compiled.run(None, feed)
            least_ms = min(least_ms, 1e3 * (clock() - start_s))
    return f"| {name} | {num_threads} | {estimate_ms:.2f} | {least_ms:.2f} | {estimate_ms / least_ms:.2f} |"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--duration", type=float, default=4.0, help="seconds for each line")


def main(arguments: Namespace) -> None:
    """Print the table."""
    print("| network | threads | estimate ms | measured ms | estimate / measured |")
    print("|---|---|---|---|---|")
    for name in arguments.networks.split(","):
        for num_threads in map(int, arguments.threads.split(",")):
            print(row(name, num_threads, arguments.duration), flush=True)
