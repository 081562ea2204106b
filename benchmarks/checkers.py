"""CPU seconds that independent checkers take of a compilation, a mapping, or a joint tiling.

    python -m benchmarks checkers --output checkers.jsonl --page docs/checks.md

`compile` plans each network for each target, once as is best and once by one recipe alone; `map` maps its
products onto machines; `fuse` tiles its chains jointly. Checkers run where they always do; time is that of
this process and of its helpers, with one thread, without the cache. What the file has is not measured again.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from tilewright import zoo
from tilewright.api import load
from tilewright.compiler import compile_graph
from tilewright.options import Options
from tilewright.planning import checking
from tilewright.registry import Registry

NETWORKS = ("squeezenet1_1", "mobilenet_v2", "resnet50", "googlenet", "bert_base")
TARGETS = ("cpu", "stcp920", "a310", "v100", "jetson-nano")
MACHINES = ("simba-cosa-repo", "eyeriss", "v100")
ONE_RECIPE: Mapping[str, str] = {"partition": "layerwise", "schedule": "greedy"}
BUDGET = "2s"


class Spent:
    """Seconds in checkers; of one that runs inside another those of the outer one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts."""

        def call(*arguments: Any, **settings: Any) -> Any:
            start_s = time.process_time()
            self._depth += 1
            try:
                return function(*arguments, **settings)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.process_time() - start_s

        return call


@contextmanager
def checks_timed() -> Iterator[Spent]:
    """Counts what all checkers take: answers pass `require_right`, or their family's `verified`."""
    spent, require_right, verified = Spent(), checking.require_right, Registry.verified
    timed = spent.timed(require_right)
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("tilewright.")]
    importers = [m for m in modules if getattr(m, "require_right", None) is require_right]
    for module in importers:
        module.require_right = timed  # type: ignore[attr-defined]
    Registry.verified = spent.timed(verified)  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        for module in importers:
            module.require_right = require_right  # type: ignore[attr-defined]
        Registry.verified = verified  # type: ignore[method-assign]


def jobs() -> Iterator[tuple[str, str, str]]:
    """What is measured: the command, where, of which network."""
    for target in TARGETS:
        yield from (("compile", target, network) for network in NETWORKS)
    for target in TARGETS[1:]:
        yield from (("one recipe", target, network) for network in NETWORKS)
    for machine in MACHINES:
        yield from (("map", machine, network) for network in NETWORKS)
    for machine in MACHINES[:2]:
        yield from (("fuse", machine, network) for network in NETWORKS[:1])


def run(command: str, where: str, network: str) -> None:
    """One command."""
    if command in ("map", "fuse"):
        if command == "map":
            tw.map(zoo.build(network), machine=where, budget=BUDGET)
        else:
            tw.map_chain(zoo.build(network), where, budget=BUDGET)
        return
    recipe = ONE_RECIPE if command == "one recipe" else {}
    graph = load(zoo.build(network)).graph
    compile_graph(graph, Options(target=where, no_cache=True, threads=1, **recipe))


def measure(command: str, where: str, network: str) -> dict[str, Any]:
    """CPU seconds of a command, and of the checkers in it."""
    gc.collect()
    with checks_timed() as spent:
        start_s = _cpu_s()
        run(command, where, network)
        cpu_s = _cpu_s() - start_s
    return {
        "command": command,
        "where": where,
        "network": network,
        "cpu_s": round(cpu_s, 3),
        "checkers_s": round(spent.seconds, 4),
    }


def _cpu_s() -> float:
    """Of this process, and of helpers that have ended."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """The tables of a page: for each command networks by where."""
    by_command: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for row in rows:
        by_command.setdefault(row["command"], {})[row["where"], row["network"]] = row
    lines: list[str] = []
    for command, found in by_command.items():
        columns = list(dict.fromkeys(where for where, _ in found))
        lines += [
            f"| `{command}` | {' | '.join(columns)} |",
            "|---|" + "---:|" * len(columns),
            *(
                f"| {network} | {' | '.join(_cell(found.get((where, network))) for where in columns)} |"
                for network in dict.fromkeys(network for _, network in found)
            ),
            "",
        ]
    return "\n".join(lines).rstrip()


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{row['checkers_s'] * 1e3:.0f} ms of {row['cpu_s']:.2f} s, {row['checkers_s'] / row['cpu_s']:.1%}"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--output", default=Path("checkers.jsonl"))
    parser.add_argument("--page")
    parser.add_argument("--only", help="commands and places, such as compile/v100,map/eyeriss")


def main(arguments: Namespace) -> None:
    """Measure what is not known yet, and write."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = rows_of(arguments.output)
    known = {(row["command"], row["where"], row["network"]) for row in rows}
    wanted = None if arguments.only is None else arguments.only.split(",")
    # Imports, and what is compiled once in a process, are not the first network's.
    run("compile", "stcp920", "squeezenet1_1")
    for job in jobs():
        if job in known or (wanted is not None and "/".join(job[:2]) not in wanted):
            continue
        rows.append(measure(*job))
        append_row(arguments.output, rows[-1])
        print(f"{job}: {_cell(rows[-1])}", flush=True)
    order = list(jobs())
    rows.sort(key=lambda row: order.index((row["command"], row["where"], row["network"])))
    if arguments.page is not None:
        arguments.page.write_text(with_table(arguments.page.read_text(), f"{page(rows)}\n"))
    else:
        print(page(rows))
