"""The grid of planners: every combination once, other placements only behind plans that they can change."""

from __future__ import annotations

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.compiler import plan_optimised
from tilewright.families import PARTITIONERS, SCHEDULERS
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.planning import Budget
from tilewright.planning.grid import CHANCE, Grid
from tilewright.planning.portfolio import Recipe
from tilewright.target_ref import TargetRef


def branches() -> Graph:
    b = GraphBuilder()
    x = b.input(64, 64)
    parts = [b.op("Relu", b.op("MatMul", x, b.constant(64, 64), shape=(64, 64))) for _ in range(3)]
    return b.finish(b.op("Add", b.op("Add", parts[0], parts[1]), parts[2]))


def test_others_are_asked_behind_each_recipe() -> None:
    asked: list[Recipe] = []

    def others(recipe: Recipe) -> tuple[Recipe, ...]:
        asked.append(recipe)
        return (Recipe(recipe.partition, recipe.schedule, "other"),) if recipe.partition == "a" else ()

    grid = Grid(("a", "b"), ("x", "y"), "m", others)
    texts = [f"{r.partition}{r.schedule}{r.memory}" for r in grid]
    assert texts == ["axm", "axother", "aym", "ayother", "bxm", "bym"]
    assert (len(grid), len(asked)) == (4, 4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["v100", "stcp920", "cpu"])
def test_the_best_of_the_grid_is_the_least_of_every_method_alone(target: str) -> None:
    options = Options(target=TargetRef.parse(target), plan="grid")
    planned = plan_optimised(branches(), options)
    plain = [a for a in planned.attempts if a.recipe is not None and not a.recipe.execution]
    tried = {(a.recipe.partition, a.recipe.schedule): a for a in reversed(plain) if a.recipe is not None}
    names = [[n for n in family.names() if n != CHANCE] for family in (PARTITIONERS, SCHEDULERS)]
    assert set(tried) == {(p, s) for p in names[0] for s in names[1]}
    costs = [a.cost for a in planned.attempts if a.cost is not None]
    assert planned.program.schedule.quality.cost == min(costs)
    assert all(a.cost is not None or a.error for a in planned.attempts)
    for partition, schedule in (("layerwise", "sequential"), ("pcgc", "ios"), ("ago", "greedy")):
        alone = plan_optimised(
            branches(), Options(target=TargetRef.parse(target), partition=partition, schedule=schedule)
        ).program.schedule.quality
        assert alone.cost == tried[partition, schedule].cost
        assert min(costs) <= alone.cost


def test_a_budget_leaves_combinations_untried() -> None:
    planned = plan_optimised(
        branches(), Options(target=TargetRef.parse("v100"), plan="grid"), portfolio=Budget(3)
    )
    assert len(planned.attempts) == 3
    assert planned.num_untried > 50


def test_mappers_and_spilling_are_varied_where_something_is_tiled_or_leaves() -> None:
    b = GraphBuilder()
    graph = b.finish(b.op("MatMul", b.input(2048, 2048), b.constant(2048, 2048), shape=(2048, 2048)))
    planned = plan_optimised(graph, Options(target=TargetRef.parse("v100"), plan="grid"))
    executions = {a.recipe.execution for a in planned.attempts if a.recipe is not None}
    assert executions >= {"", "mapper=cosa", "mapper=paper"}
    small = plan_optimised(branches(), Options(target=TargetRef.parse("stcp920"), plan="grid"))
    assert {a.recipe.execution for a in small.attempts if a.recipe is not None} == {""}
