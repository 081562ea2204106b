"""The arena's promise: within 5 % of the live bytes on 95 % of networks, planned equal to used."""

import pytest

from tilewright.errors import UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.memory import MEMORY_PLANNERS, MemoryPlan, check_memory, memory_problem
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.planning import Budget, Limits
from tilewright.schedule import SCHEDULERS, Schedule, ScheduleProblem
from tilewright.zoo import build, names

QUICK = ("bert_tiny", "densenet121", "mnasnet1_0", "mobilenet_v2", "shufflenet_v2_x1_0", "squeezenet1_1")


def gaps(network: str) -> list[float]:
    """Distance from the bound for every partition and schedule that is tried."""
    try:
        model = build(network, image=96)
    except UsageError:  # not a network for images
        model = build(network)
    graph = load_onnx(model)
    found: list[float] = []
    for partitioner in ("none", "layerwise"):
        partition = PARTITIONERS.get(partitioner).solve(PartitionProblem(graph), Budget())
        assert isinstance(partition, Partition)
        for scheduler, max_groups in (("sequential", 1), ("greedy", 8)):
            schedule = SCHEDULERS.get(scheduler).solve(
                ScheduleProblem(partition, limits=Limits(max_groups)), Budget()
            )
            assert isinstance(schedule, Schedule)
            problem = memory_problem(schedule)
            plan = MEMORY_PLANNERS.get("arena").solve(problem, Budget())
            assert isinstance(plan, MemoryPlan)
            assert check_memory(problem, plan) == ()
            found.append(plan.quality.gap)
    return found


def assert_promise(found: list[float]) -> None:
    near = sum(gap <= 0.05 for gap in found)
    assert near >= 0.95 * len(found), f"{near} of {len(found)} plans within 5 %"


def test_arenas_of_some_networks_are_near_their_bound() -> None:
    assert_promise([gap for network in QUICK for gap in gaps(network)])


@pytest.mark.slow
def test_arenas_of_all_networks_are_near_their_bound() -> None:
    assert_promise([gap for network in names() for gap in gaps(network)])
