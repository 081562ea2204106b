"""Plans of one sample that run for each: the graph of one sample, and schedules of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import planner_of, pricer_of

from tilewright import joint_blocks, joint_plan
from tilewright.ir.derive import macs
from tilewright.ir.graph import Graph, Value
from tilewright.ir.verify import require_valid
from tilewright.joint.launched.content import Content, Kernel, Numbered, assembled
from tilewright.joint.launched.samples import OneSample, one_sample
from tilewright.partition.analysis import Analysis
from tilewright.partition.split import split_of
from tilewright.planner import LEFT_OPEN, Planner, cost_of
from tilewright.planning import Budget, Meter, Provenance
from tilewright.planning.portfolio import Best, Recipe
from tilewright.program import Program
from tilewright.report.comparison import Tolerance, first_difference
from tilewright.report.simulation import compare_values
from tilewright.schedule import check_schedule
from tilewright.schedule.base import Group, Instance, Schedule, Stage, build_schedule
from tilewright.targets.base import SimulatedCode

SAMPLES = 4
Build = Callable[[], Graph]


def convolved(b: GraphBuilder, x: Value, channels: int) -> Value:
    shape = (x.shape[0], channels, *x.shape[2:])
    weight = b.constant(channels, x.shape[1], 1, 1, value=0.01)
    return b.op("Relu", b.op("Conv", x, weight, b.constant(channels), shape=shape))


def image_chain(samples: int = SAMPLES, side: int = 28, num_layers: int = 3) -> Graph:
    b = GraphBuilder()
    y: Value = b.input(samples, 16, side, side)
    for _ in range(num_layers):
        y = convolved(b, y, 16)
    return b.finish(y)


def fork(samples: int = SAMPLES) -> Graph:
    b = GraphBuilder()
    x = convolved(b, b.input(samples, 8, 8, 8), 8)
    return b.finish(b.op("Add", convolved(b, x, 8), convolved(b, x, 8)))


def reshaped(samples: int = SAMPLES) -> Graph:
    """The samples are the second axis in between."""
    b = GraphBuilder()
    x = b.input(samples, 8, 6)
    y = b.op("Transpose", x, shape=(8, samples, 6), perm=(1, 0, 2))
    flat = b.op("Reshape", y, b.integers(8, samples, 2, 3), shape=(8, samples, 2, 3))
    return b.finish(b.op("Relu", flat))


def of_one(graph: Graph) -> OneSample:
    found = one_sample(graph, Analysis(graph))
    assert found is not None
    return found


@pytest.mark.parametrize("build", [image_chain, fork, reshaped])
def test_the_graph_of_one_sample_takes_its_share_of_all_work(build: Build) -> None:
    graph = build()
    one = of_one(graph)
    require_valid(one.graph, after="taking one sample")
    assert one.num_samples == SAMPLES
    for node, whole in zip(one.graph.nodes, graph.nodes, strict=True):
        assert node.op_type == whole.op_type
        assert macs(node) * SAMPLES == macs(whole)
        axis = one.axes[whole.output]
        shape = list(whole.output.shape)
        assert shape[axis] == SAMPLES
        shape[axis] = 1
        assert node.output.shape == tuple(shape)


def test_operands_that_decide_shapes_are_those_of_one_sample() -> None:
    node = next(node for node in of_one(reshaped()).graph.nodes if node.op_type == "Reshape")
    sizes = node.constant(1)
    assert sizes is not None
    assert sizes.tolist() == [8, 1, 2, 3]


def samples_in_a_constant() -> Graph:
    b = GraphBuilder()
    x = convolved(b, b.input(SAMPLES, 8, 8, 8), 8)
    return b.finish(b.op("Add", x, b.constant(SAMPLES, 1, 1, 1)))


def samples_that_are_mixed() -> Graph:
    b = GraphBuilder()
    x = convolved(b, b.input(SAMPLES, 8, 8, 8), 8)
    return b.finish(x, b.op("Softmax", x, axis=0))


@pytest.mark.parametrize(
    "graph",
    [image_chain(1), image_chain(33, side=4), samples_in_a_constant(), samples_that_are_mixed()],
    ids=["one sample", "very many", "in a constant", "mixed"],
)
def test_no_sample_stands_for_all_where_samples_are_not_computed_alone(graph: Graph) -> None:
    assert one_sample(graph, Analysis(graph)) is None


@pytest.mark.parametrize("machine", ["a310", "jetson-nano"])
@pytest.mark.parametrize("build", [image_chain, fork, reshaped])
def test_a_plan_of_one_sample_runs_for_each_with_the_same_values(build: Build, machine: str) -> None:
    graph = build()
    one, planner = of_one(graph), planner_of(graph, machine)
    small, numbered = planner.of_graph(one.graph), Numbered(graph)
    for partition, order in (
        ("layerwise", "sequential"),
        ("none", "sequential"),
        ("graphturbo", "depth-first"),
    ):
        recipe = Recipe(partition, order, "longest-liveness")
        schedule = small.schedule(small.partition(partition), recipe)
        contents = list(one.repeated(tuple(Numbered(one.graph).contents(schedule)), numbered))
        assert sum(content.mask for content in contents) == (1 << len(numbered.nodes)) - 1
        for kernel in (kernel for content in contents for kernel in content.kernels):
            axis = one.axes[numbered.outputs(kernel.mask)[0]]
            assert dict(kernel.split.cuts)[axis] == SAMPLES
        found = assembled(planner.backend.partition_problem, contents, numbered.nodes.__getitem__)
        problem = planner.schedule_problem(found.partition, recipe)
        repeated = build_schedule(problem, found.stages, Provenance("repeated"), found.splits)
        assert not check_schedule(problem, repeated)
        assert repeated.quality.cost <= SAMPLES * schedule.quality.cost
        code = planner.backend.generate(planner.placed(repeated, recipe))
        assert isinstance(code, SimulatedCode)
        assert first_difference(compare_values(code, Tolerance())) is None


def test_rows_are_cut_within_each_sample_and_kernels_side_by_side_stay_so() -> None:
    graph = fork()
    one, numbered = of_one(graph), Numbered(graph)
    rows = Kernel(((0, 1),), split_of([(2, 2)]))
    (content,) = one.repeated([Content.of_kernel(rows.layers, rows.split)], numbered)
    assert content.kernels[0].split.cuts == ((0, SAMPLES), (2, 2))
    assert [i.index for s in content.stages for i in s.instances()] == list(range(2 * SAMPLES))
    groups = tuple(Group((Instance(place),)) for place in range(2))
    sides = Content((Kernel(((2, 3),)), Kernel(((4, 5),))), (Stage(groups),))
    (content,) = one.repeated([sides], numbered)
    (stage,) = content.stages
    assert [[i.index for i in group.instances] for group in stage.groups] == [list(range(SAMPLES))] * 2
    assert pricer_of(planner_of(graph, "v100"), numbered).cost(content) < float("inf")


def papers_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave layers one by one as the only plan of all samples before that of one is run for each."""
    for step in ("try_default", "try_fastest"):
        monkeypatch.setattr(joint_plan._Found, step, lambda self, meter: None)


def test_a_joint_plan_of_many_samples_goes_on_from_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[float, float, float]] = []
    run = joint_blocks.Blocks.repeated

    def repeated(
        self: joint_blocks.Blocks, best: Best[Program], one: OneSample, schedule: Schedule, meter: Meter
    ) -> Best[Program]:
        found = run(self, best, one, schedule, meter)
        costs.append((cost_of(best.plan), cost_of(found.plan), schedule.quality.cost))
        return found

    monkeypatch.setattr(joint_blocks.Blocks, "repeated", repeated)
    papers_are_late(monkeypatch)
    planner = planner_of(image_chain(SAMPLES, 112, 4), "zcu102{dtype=int8}")
    planner.options = replace(planner.options, plan="joint")
    meter = Budget(6, deadline_s=100.0).start(lambda: 0.0)
    best, backend = joint_plan.joint_plan(planner, joint_plan.begun(planner, LEFT_OPEN, meter))
    backend.generate(best.plan)  # which checks it
    ((before, after, single),) = costs
    assert cost_of(best.plan) <= after < before
    assert after <= SAMPLES * single


@pytest.mark.parametrize(("took_s", "is_run"), [(1.0, True), (40.0, False)])
def test_the_plan_of_one_sample_runs_for_all_only_where_time_lasts(
    took_s: float, is_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated: list[float] = []
    now_s, tried = [0.0], Planner.tried

    def run(_: joint_blocks.Blocks, best: Best[Program], *__: object) -> Best[Program]:
        repeated.append(cost_of(best.plan))
        return best

    def slow(planner: Planner, recipes: Iterable[Recipe], best: Best[Program] | None, meter: Meter) -> Any:
        now_s[0] += took_s if best is None else 0.0
        return tried(planner, recipes, best, meter)

    monkeypatch.setattr(joint_blocks.Blocks, "repeated", run)
    monkeypatch.setattr(Planner, "tried", slow)
    papers_are_late(monkeypatch)
    planner = planner_of(image_chain(SAMPLES, 112, 4), "zcu102{dtype=int8}")
    planner.options = replace(planner.options, plan="joint")
    meter = Budget(6, deadline_s=100.0).start(lambda: now_s[0])
    joint_plan.joint_plan(planner, joint_plan.begun(planner, LEFT_OPEN, meter))
    assert bool(repeated) == is_run
