"""The joint search with stages and merges alone beside the scheduler `ios`, on the networks of its paper.

`python -m benchmarks frozen --networks ios_squeezenet,ios_inception_v3` prints a row for each network.
Kernels are the paper's schedule units, on the simulated V100. Seconds are processor time of one thread.
"""

from __future__ import annotations

import time

from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.joint_plan import begun, joint_plan
from tilewright.options import AUTO, Options
from tilewright.partition.base import Partition
from tilewright.passes import run_passes
from tilewright.planner import Planner
from tilewright.planning import UNLIMITED, Budget, Infeasible
from tilewright.planning.portfolio import Recipe
from tilewright.progress import PhaseClock
from tilewright.reproduce.ios.runs import units_of
from tilewright.schedule.ios.planner import Ios
from tilewright.targets import find_target

MACHINE = "v100"
NETWORKS = ("ios_squeezenet", "ios_inception_v3", "ios_randwire", "ios_nasnet_a")
UNITS = "units"


class UnitPlanner(Planner):
    """A planner whose one partition is that into the paper's schedule units."""

    def partition(self, name: str) -> Partition:
        """What a partitioner makes of the graph, or the units."""
        return super().partition(name) if name != UNITS else units_of(self.graph)


def row(network: str) -> str:
    """Both costs of one network, and what they took."""
    graph = load_onnx(zoo.build(network, batch=1))
    run_passes(graph)
    asked = Options(target=MACHINE, plan="joint", only=("stages", "merges"))
    target = find_target(asked.target)
    backend = target.backend(graph, asked)
    planner = UnitPlanner(backend.partition_problem.graph, target, backend, asked, PhaseClock(None, None))
    started = time.process_time()
    given = begun(planner, Recipe(UNITS, AUTO, AUTO), Budget(UNLIMITED))
    joint = joint_plan(planner, given)[0].plan.schedule.quality
    joint_s = time.process_time() - started
    started = time.process_time()
    problem = planner.schedule_problem(units_of(planner.graph), given.recipe)
    published = Ios().solve(problem, Budget(UNLIMITED))
    assert not isinstance(published, Infeasible)
    ios_s = time.process_time() - started
    cells = (
        network,
        f"{given.plan.schedule.quality.cost / 1e6:.4f}",
        f"{published.quality.cost / 1e6:.4f}",
        str(published.quality.status),
        f"{joint.cost / 1e6:.4f}",
        str(joint.status),
        f"{joint.cost / published.quality.cost - 1:.1e}",
        f"{ios_s:.0f}",
        f"{joint_s:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))


def main(arguments: Namespace) -> None:
    """A row for each network."""
    heads = "network", "sequential, ms", "ios", "", "joint", "", "apart", "ios, s", "joint, s"
    print(f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n")
    for network in arguments.networks.split(","):
        print(row(network), flush=True)
