"""No proven bound of any planner is above the cost of any planner's answer in the space that the bound names.

Random branching networks on presets, and on variants of these with other cores, rates and capacities: every
partitioner, scheduler, memory planner and mapper against every other, and portfolios against their members.
"""

# mypy: disable-error-code="arg-type, var-annotated"

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pytest
from tests.property.test_random_machines import random_machine, random_problem
from tests.support.graphs import GraphBuilder

from tilewright.comparison import best_plan
from tilewright.cost.base import Objective
from tilewright.errors import InfeasibleMapping, TilewrightError, UsageError
from tilewright.families import MAPPERS, PARTITIONERS, SCHEDULERS
from tilewright.hardware.machine import Machine, Overheads
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.mapping.base import MAPPINGS, UNPADDED, MappingProblem, MappingSolution
from tilewright.memory import MEMORY_PLANNERS, Buffer, MemoryLevel, MemoryPlan, MemoryProblem
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.planner import LEFT_OPEN, Planner
from tilewright.planning import Bound, Budget, Rule, Space
from tilewright.planning.portfolio import Recipe
from tilewright.program import Program
from tilewright.progress import PhaseClock
from tilewright.schedule import Schedule
from tilewright.schedule.base import space_of
from tilewright.schedule.ios.blocks import blocks
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.space import OF_PARTITION, SCHEDULES
from tilewright.targets.npu.target import NpuTarget

PRESETS = ("v100", "jetson-nano", "k80", "h200", "stcp920", "stcp920-paper", "ascend910",
           "ipu-mk1", "a310")  # fmt: skip
VARIANTS = ("ios{strategy=parallel}", "ios{strategy=merge}", "ios{max_groups=2}", "ios{max_group_size=1}",
            "ios{moldable=true}", "ios{grouping=single-source}", "ios{max_block_size=2}", "random{seed=1}",
            "random{seed=2}", "random{seed=3}", "virtual-units{inside=false}", "core-groups{number=3}",
            "sequential{order=depth-first}", "horizontal-fusion{min_gain=-9}")  # fmt: skip
NUM_VARIANTS = 5
QUICK, MANY = range(30), range(30, 1100)
OBJECTIVES = get_args(Objective)


@dataclass(frozen=True)
class Answer:
    """A planner's answer: its cost, the narrowest space that holds it, and its bounds."""

    planner: str
    cost: float
    space: Space
    bounds: tuple[Bound, ...]


def violations(answers: Sequence[Answer]) -> Iterator[str]:
    """Bounds that are above a cost of their space."""
    for bounding in answers:
        for bound in bounding.bounds:
            if not bounding.bounds or not bound.is_proven:
                continue
            for answer in answers:
                if bound.space.includes(answer.space) and bound.is_violated(answer.cost):
                    yield (
                        f"{bounding.planner} claims that {bound.space} take at least {bound.value:g} "
                        f"({bound.source}), {answer.planner} takes {answer.cost:g}"
                    )


def network(rng: random.Random) -> Graph:
    """Branches of products, convolutions and element-wise operators that meet again."""
    b = GraphBuilder()
    if rng.random() < 0.5:
        return _of_products(rng, b)
    return _of_images(rng, b)


def _of_products(rng: random.Random, b: GraphBuilder) -> Graph:
    values = [b.input(rng.choice((1, 8, 40)), rng.choice((16, 100)))]
    for _ in range(rng.randint(2, 7)):
        x = rng.choice(values[-3:])
        if rng.random() < 0.6:
            width = rng.choice((7, 32, 100))
            values.append(b.op("MatMul", x, b.constant(x.shape[1], width), shape=(x.shape[0], width)))
        else:
            like = [v for v in values if v.shape == x.shape]
            two = rng.random() < 0.5
            values.append(
                b.op("Add", x, rng.choice(like)) if two else b.op(rng.choice(("Relu", "Softmax")), x)
            )
    return b.finish(*_unread(values))


def _of_images(rng: random.Random, b: GraphBuilder) -> Graph:
    size = rng.choice((6, 9, 16))
    values = [b.input(rng.choice((1, 2)), rng.choice((3, 16)), size, size)]
    for _ in range(rng.randint(2, 6)):
        x = rng.choice(values[-3:])
        if rng.random() < 0.7:
            values.append(_convolution(rng, b, x))
        else:
            like = [v for v in values if v.shape == x.shape]
            values.append(b.op("Add", x, rng.choice(like)) if rng.random() < 0.5 else b.op("Relu", x))
    return b.finish(*_unread(values))


def _convolution(rng: random.Random, b: GraphBuilder, x: Value) -> Value:
    """A window, at times with steps over elements that it does not read."""
    kernel, stride, filters = rng.choice((1, 1, 3)), rng.choice((1, 1, 2)), rng.choice((4, 16, 33))
    pad = kernel // 2
    rows, columns = ((extent + 2 * pad - kernel) // stride + 1 for extent in x.shape[2:])
    weight = b.constant(filters, x.shape[1], kernel, kernel)
    windows = {"kernel_shape": (kernel, kernel), "pads": (pad,) * 4, "strides": (stride, stride)}
    return b.op("Conv", x, weight, shape=(x.shape[0], filters, rows, columns), **windows)


def _unread(values: Sequence[Value]) -> list[Value]:
    return [v for v in values[1:] if not v.users]


def machine_of(rng: random.Random) -> Machine:
    """A preset, or a variant of one."""
    machine = load_preset(rng.choice(PRESETS))
    if rng.random() < 0.4:
        return machine
    change: dict[str, Any] = {"name": f"{machine.name}-variant"}
    if machine.clock_hz is not None:
        change["clock_hz"] = machine.clock_hz * rng.choice((0.3, 1.0, 2.0))
    change["overheads"] = Overheads(
        kernel_launch_ns=rng.choice((0, 100, 5000)), barrier_ns=rng.choice((0, 1000))
    )
    levels = []
    for level in machine.levels:
        rates = {
            name: getattr(level, name) * rng.choice((0.1, 1.0, 5.0))
            for name in ("read_bytes_per_s", "write_bytes_per_s")
            if getattr(level, name) is not None
        }
        levels.append(level.model_copy(update=rates))
    change["levels"] = tuple(levels)
    return machine.model_copy(update=change)


class Recorded(Planner):
    """A planner that keeps which recipes it was asked for."""

    def program(self, recipe: Recipe) -> Program:
        self.recipes = [*getattr(self, "recipes", ()), recipe]
        return super().program(recipe)


def planner_of(graph: Graph, machine: Machine, options: Options | None = None, **settings: bool) -> Recorded:
    target, options = NpuTarget(machine), options or Options()
    return Recorded(
        graph, target, target.backend(graph, options), options, PhaseClock(None, None), **settings
    )


def partitions(planner: Planner) -> Iterator[tuple[str, Partition]]:
    for name in (*PARTITIONERS.names(), "random{seed=1}", "graphturbo{dims=any}"):
        try:
            yield name, planner.partition(name)
        except InfeasibleMapping:
            continue


def schedules(
    planner: Planner, partition: Partition, variants: Sequence[str]
) -> Iterator[tuple[str, Schedule]]:
    memory = planner.backend.default_recipe.memory
    for name in (*SCHEDULERS.names(), *variants):
        try:
            yield name, planner.schedule(partition, Recipe("given", name, memory))
        except TilewrightError:
            continue


def within_blocks(schedule: Schedule, max_block_size: int) -> bool:
    graph = StageGraph.of_partition(schedule.partition)
    homes = {
        i: n for n, span in enumerate(blocks(graph, max_block_size)) for i in range(span.start, span.stop)
    }
    return all(len({homes[i.subgraph_id] for i in stage.instances()}) == 1 for stage in schedule.stages)


def answer_of(name: str, schedule: Schedule) -> Answer:
    space = space_of(schedule.partition, schedule.stages, schedule.splits)
    quality = schedule.quality
    for size in (2, 40):
        if within_blocks(schedule, size):
            space = space.keeping(Rule(f"without stages across blocks of at most {size}"))
    return Answer(name, quality.cost, space, quality.bounds)


def networks_answers(seed: int) -> Iterator[list[Answer]]:
    """Answers to one question each: partitions of a network, schedules of two of these, schedules of both."""
    rng = random.Random(seed)
    graph, machine = network(rng), machine_of(rng)
    planner = planner_of(graph, machine)
    found = dict(partitions(planner))
    yield [Answer(n, p.quality.cost, p.quality.widest.space, p.quality.bounds) for n, p in found.items()]
    everything: list[Answer] = []
    variants = rng.sample(VARIANTS, NUM_VARIANTS)
    for name in rng.sample(sorted(found), 2):
        answers = [
            answer_of(f"{name}, {s}", schedule) for s, schedule in schedules(planner, found[name], variants)
        ]
        yield answers
        everything += answers
    # Of schedules of another partition only what is of all schedules says anything.
    yield [
        replace(a, bounds=tuple(b for b in a.bounds if OF_PARTITION not in b.space.rules)) for a in everything
    ]


def placements(seed: int) -> list[Answer]:
    """Answers of all memory planners to one problem of random buffers on one level or several."""
    rng = random.Random(seed)
    buffers = []
    for number in range(rng.randint(1, 14)):
        first = rng.randint(0, 9)
        dying = tuple(b.name for b in buffers if b.last_step == first and rng.random() < 0.5)
        size, last = rng.choice((1, 50, 64, 300, 1000)), first + rng.randint(0, 4)
        buffers.append(Buffer(f"b{number}", size, first, last, rng.choice((1, 64)), dying))
    inner = [MemoryLevel(f"L{n}", rng.choice((100, 600, 2000))) for n in range(rng.choice((0, 0, 1, 2)))]
    problem = MemoryProblem(tuple(buffers), (*inner, MemoryLevel("outermost")))
    answers = []
    for name in MEMORY_PLANNERS.names():
        plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(30))
        assert isinstance(plan, MemoryPlan)
        answers.append(Answer(name, plan.quality.cost, plan.quality.widest.space, plan.quality.bounds))
    return answers


def mappings(seed: int) -> list[Answer]:
    """Answers of all mappers to one operator on one machine."""
    random = np.random.default_rng(seed)
    machine = random_machine(random)
    problem = random_problem(random, len(machine.levels))
    asked = MappingProblem(problem, machine, OBJECTIVES[seed % 3])
    answers = []
    for name in (*MAPPERS.names(), "exact{pads=false}", "exact{max_points=3}", "exact{max_search_states=2}"):
        try:
            answer = MAPPERS.get(name).solve(asked, Budget(60))
        except InfeasibleMapping:
            continue
        if isinstance(answer, MappingSolution):
            is_padded = answer.mapping.padding(problem) > 0
            space = MAPPINGS if is_padded else MAPPINGS.keeping(UNPADDED)
            answers.append(Answer(name, answer.quality.cost, space, answer.quality.bounds))
    return answers


def require_bounds(answers: Sequence[Answer]) -> None:
    wrong = [*violations(answers)]
    assert not wrong, f"{len(wrong)}, such as: {wrong[0]}"


def require_best(seed: int, plan: Literal["portfolio", "grid"]) -> None:
    """That no member of a portfolio is better than the portfolio, each planned on its own."""
    rng = random.Random(seed)
    graph, machine = network(rng), machine_of(rng)
    portfolio = planner_of(graph, machine, Options(plan=plan), only_better=plan == "portfolio")
    cost = best_plan(portfolio, LEFT_OPEN).plan.schedule.quality.cost
    alone = planner_of(graph, machine)
    for recipe in portfolio.recipes:
        with contextlib.suppress(InfeasibleMapping, UsageError):
            assert cost <= alone.program(recipe).schedule.quality.cost * (1 + 1e-9), recipe


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", QUICK)
def test_no_proven_bound_is_above_a_cost_of_its_space(seed: int) -> None:
    for answers in networks_answers(seed):
        require_bounds(answers)
    require_bounds(placements(seed))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", QUICK)
def test_no_bound_of_a_mapper_is_above_a_cost_of_its_space(seed: int) -> None:
    require_bounds(mappings(seed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", QUICK[::4])
@pytest.mark.parametrize("plan", ["portfolio", "grid"])
def test_no_member_of_a_portfolio_is_better_than_the_portfolio(
    seed: int, plan: Literal["portfolio", "grid"]
) -> None:
    require_best(seed, plan)


@pytest.mark.slow
def test_bounds_hold_on_many_networks_and_machines() -> None:
    for seed in MANY:
        for answers in networks_answers(seed):
            require_bounds(answers)
        require_bounds(placements(seed))
        require_bounds(mappings(seed))
        require_best(seed, "portfolio")


def test_the_bound_of_a_search_would_not_hold_for_all_schedules() -> None:
    """What the names of spaces are for: without the rules of its space the search's bound is too high."""
    wrong = (
        text
        for seed in (5, *QUICK)
        for answers in networks_answers(seed)
        for text in violations([_of_partition(answer) for answer in answers])
    )
    assert "(search)" in next(wrong)


def _of_partition(answer: Answer) -> Answer:
    """The answer with bounds of schedules as if they were of all schedules of the partition."""
    widened = tuple(
        replace(b, space=SCHEDULES.keeping(OF_PARTITION)) for b in answer.bounds if b.source == "search"
    )
    return replace(answer, bounds=widened)
