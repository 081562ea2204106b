"""200 machines x ResNet-50, in two processes and on two workers of Ray, of which one is killed: all equal.

`python -m benchmarks sweep --output out --minutes 10` goes on where it was stopped: answers are in
`out/processes.jsonl` and `out/ray.jsonl`, the front in `out/sweep.html`, who was killed in `out/killed.txt`,
figures in `out/sweep.json`: how many variants differ, and how many answers are missing or there twice. Ray is
`pip install 'tilewright[cluster]'`; without it, `--without-ray` makes the page alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from tilewright.mapping.sweep import ray_workers
from tilewright.mapping.sweep.results import MapSweep

AXES = (
    "levels.GlobalBuffer.capacity=16KiB,32KiB,64KiB,128KiB,256KiB",
    "levels.WeightBuffer.capacity=2KiB,4KiB,8KiB,16KiB,32KiB",
    "levels.InputBuffer.capacity=1KiB,2KiB,4KiB,8KiB",
    "levels.AccumulationBuffer.capacity=192,768",
)
KILLED_AFTER = 20
"""Answers of this run after which a worker of Ray is killed."""


class OutOfTime(Exception):
    """To be gone on with."""


class Watch:
    """Ends a run in time, and kills a worker on the way if it is told how."""

    def __init__(self, end_s: float, crews: list[Any], told: Path) -> None:
        self.end_s, self.crews, self.told = end_s, crews, told
        self.first: int | None = None
        self.killed: int | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self.first = done if self.first is None else self.first
        print(f"\r{what}", end="", file=sys.stderr, flush=True)
        if self.crews and self.killed is None and done - self.first >= KILLED_AFTER:
            self.killed = self.crews[0].started[0].pid
            os.kill(self.killed, signal.SIGKILL)
            with self.told.open("a") as file:
                file.write(f"process {self.killed}: {what}\n")
        if time.monotonic() > self.end_s:
            raise OutOfTime


def swept(work: Any, arguments: Namespace, end_s: float, workers: str) -> MapSweep:
    crews: list[Any] = []
    if workers == "ray":
        import ray

        class Crew(ray_workers.RayCrew):
            def __init__(self, address: str, limit_s: float) -> None:
                super().__init__(address, limit_s)
                crews.append(self)

        ray_workers.RayCrew = Crew  # type: ignore[misc]  # told apart by the one that is killed
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    watch = Watch(end_s, crews, killed_file(arguments))
    name = "ray" if workers == "ray" else "processes"
    result: MapSweep = tw.map(
        work,
        "simba-cosa-repo",
        mapper=arguments.mapper,
        budget=arguments.budget,
        sweep=AXES[: arguments.axes],
        workers=workers,
        journal=arguments.output / f"{name}.jsonl",
        plot=arguments.output / "sweep.html" if name == "processes" else None,
        progress=watch,
    )
    print(file=sys.stderr)
    return result


def killed_file(arguments: Namespace) -> Path:
    folder: Path = arguments.output
    return folder / "killed.txt"


def tasks_in(journal: Path) -> list[str]:
    """The tasks of a journal's answers; what a kill cut short is none."""
    tasks = []
    for line in journal.read_text().splitlines():
        with contextlib.suppress(ValueError):
            tasks.append(json.loads(line)["task"])
    return sorted(tasks)


def document(result: MapSweep) -> list[Any]:
    """The variants with all that is said of them but the time that it took."""
    found: list[Any] = result.to_json()["variants"]
    for variant in found:
        if variant["total"] is not None:
            variant["total"]["seconds"] = 0.0
    return found


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--output", default=Path("sweep-results"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--mapper", default="cosa")
    parser.add_argument("--budget", default=None, help="for each layer, 10s if left out")
    parser.add_argument("--axes", type=int, default=len(AXES), help="how many axes; 2 are 25 machines")
    parser.add_argument("--layer", default="", help="a layer instead of ResNet-50")
    parser.add_argument("--without-ray", action="store_true")


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + 60 * arguments.minutes
    work = arguments.layer or tw.load(tw.zoo.build("resnet50"))
    try:
        plain = swept(work, arguments, end_s, "2")
        figures = {"machines": len(plain.variants), "front": len(plain.front)}
        if not arguments.without_ray:
            on_ray = swept(work, arguments, end_s, "ray")
            killed = killed_file(arguments)
            figures["killed"] = len(killed.read_text().splitlines()) if killed.exists() else 0
            pairs = zip(document(plain), document(on_ray), strict=True)
            figures["different"] = sum(one != other for one, other in pairs)
            here, there = (tasks_in(arguments.output / f"{name}.jsonl") for name in ("processes", "ray"))
            figures["lost_or_twice"] = len(set(here) ^ set(there)) + len(there) - len(set(there))
    except OutOfTime:
        print("\nout of time: run the same again, which goes on", file=sys.stderr)
        raise SystemExit(75) from None
    (arguments.output / "sweep.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps(figures))
    if figures.get("different") or figures.get("lost_or_twice"):
        raise SystemExit(1)
