"""Virtual computing units: how many there are, and what runs side by side on them (PCGC's Example 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from tests.support.graphs import GraphBuilder, random_graph

from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.roofline import Roofline
from tilewright.hardware.machine import Machine
from tilewright.hardware.parts import Work
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.planning import Budget, Limits
from tilewright.schedule import Schedule, ScheduleProblem, check_schedule
from tilewright.schedule.units import virtual_units
from tilewright.schedule.virtual_units import VirtualUnits
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target


@dataclass(frozen=True, slots=True)
class OnCores(Roofline):
    """Kernels that take as long as they have channels on any number of cores, each core one at a time."""

    num_cores: int = 1

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        channels = max(v.shape[1] for v in work.outputs)
        return Estimate(float(channels), 0.0, self.source)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        assert len(groups) <= self.num_cores
        return Estimate(
            max(sum(self.kernel(work).time_ns for work in group) for group in groups), 0.0, self.source
        )


def branches(channels: Sequence[int]) -> Graph:
    b = GraphBuilder()
    x = b.input(1, 4, 8, 8)
    return b.finish(*(b.op("Relu", b.conv(x, count)) for count in channels))


def partition_of(graph: Graph, name: str = "layerwise") -> Partition:
    answer = PARTITIONERS.get(name).solve(PartitionProblem(graph), Budget())
    assert isinstance(answer, Partition)
    return answer


def solve(graph: Graph, num_cores: int) -> Schedule:
    cost = OnCores(1.0, 1.0, 0.0, "by hand", proves_bounds=False, num_cores=num_cores)
    limits = Limits(num_groups=num_cores, num_cores=num_cores)
    problem = ScheduleProblem(partition_of(graph), cost=cost, limits=limits)
    schedule = VirtualUnits().solve(problem, Budget())
    assert check_schedule(problem, schedule) == ()
    return schedule


@pytest.mark.parametrize(
    ("num_cores", "time_ns", "num_stages"), [(1, 80.0, 4), (2, 40.0, 1), (3, 40.0, 1), (4, 40.0, 1)]
)
def test_example_4_one_unit_takes_the_sum_and_four_the_longest(
    num_cores: int, time_ns: float, num_stages: int
) -> None:
    schedule = solve(branches([8, 24, 40, 8]), num_cores)
    assert schedule.quality.cost == time_ns
    assert len(schedule.stages) == num_stages


@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_example_4_in_the_simulator(objective: Literal["latency", "energy"]) -> None:
    """Four equal convolutions of too few pixels for several cores: on four of these as long as one."""
    b = GraphBuilder()
    x = b.input(1, 256, 4, 4)
    graph = b.finish(*(b.op("Relu", b.conv(x, 16)) for _ in range(4)))
    preset = load_preset("a310")
    found = {}
    for num_cores in (1, 4):
        machine = with_cores(preset, num_cores)
        options = Options(hint=objective)
        target = find_target(TargetRef.parse("a310")).__class__(machine)  # type: ignore[call-arg]
        backend = target.backend(graph, options)
        partition = PARTITIONERS.get("layerwise").solve(backend.partition_problem, Budget())
        assert isinstance(partition, Partition)
        problem = ScheduleProblem(
            partition, machine, backend.costs, objective=options.objective, limits=backend.limits
        )
        schedule = VirtualUnits().solve(problem, Budget())
        assert check_schedule(problem, schedule) == ()
        total = problem.estimate(schedule.stages)
        longest = max(problem.kernel(i).time_ns for i in range(4))
        found[num_cores] = (total.time_ns / longest, len(schedule.stages))
    assert found[1][0] == pytest.approx(4.0)
    assert found[1][1] == 4
    assert found[4][1] == 1
    assert found[4][0] < 2.0  # the weights of all still pass one port of main memory


def with_cores(machine: Machine, num_cores: int) -> Machine:
    """The same cores, more or fewer of them."""
    of_core = [i for i, level in enumerate(machine.levels) if level.per == "core"][-1]
    levels = list(machine.levels)
    levels[of_core] = levels[of_core].model_copy(update={"num_instances_per_parent": num_cores})
    return machine.model_copy(update={"levels": tuple(levels), "num_cores_per_cluster": num_cores})


def test_a_branch_of_several_subgraphs_is_one_group() -> None:
    b = GraphBuilder()
    x = b.input(1, 4, 8, 8)

    def two(value: Value) -> Value:
        return b.conv(b.op("Relu", b.conv(value, 8)), 8)

    schedule = solve(b.finish(b.op("Concat", two(x), two(x), shape=(1, 16, 8, 8), axis=1)), 2)
    first = schedule.stages[0]
    assert [len(group.instances) for group in first.groups] == [2, 2]
    assert len(schedule.stages) == 2


def test_units_are_those_of_cores_that_run_an_operation_class() -> None:
    assert virtual_units(load_preset("a310"), 2)[Work.CONTRACTION] == 2
    assert virtual_units(load_preset("jetson-nano"), 1) == {
        work: int(work is not Work.MOVEMENT) for work in Work
    }
    assert virtual_units(None, 3)[Work.CONTRACTION] == 3


@pytest.mark.parametrize("seed", range(12))
def test_schedules_of_random_graphs_cost_no_more_than_one_after_another(seed: int) -> None:
    partition = partition_of(random_graph(seed, 4 + seed))
    cost = OnCores(1.0, 1.0, 0.0, "by hand", proves_bounds=False, num_cores=3)
    problem = ScheduleProblem(partition, cost=cost, limits=Limits(num_groups=3, num_cores=3))
    schedule = VirtualUnits().solve(problem, Budget())
    assert check_schedule(problem, schedule) == ()
    one_by_one = sum(problem.kernel(s.id).time_ns for s in partition.subgraphs)
    assert schedule.quality.cost <= one_by_one
