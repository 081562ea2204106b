"""First runs on a machine: no mapping is known, the loops that search for them are not compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.launched_kernels import chain, deep_and_small, planner_of

from tilewright import comparison, joint_blocks, joint_plan
from tilewright.comparison import best_plan
from tilewright.errors import InternalError
from tilewright.ir.graph import Graph
from tilewright.options import Choice
from tilewright.planner import LEFT_OPEN, Planner, cost_of
from tilewright.planning import UNLIMITED, Budget
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.program import Program
from tilewright.progress import require_compiling
from tilewright.targets.base import Backend
from tilewright.targets.npu import backend as backend_module
from tilewright.targets.npu import mapped_products
from tilewright.targets.npu.check_plan import check_plan
from tilewright.targets.npu.mapped_products import SEARCH, _product_mapper


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine on which no mapping is known and the loops that search for them are still to be compiled."""
    solved = mapped_products._solved

    def asked(name: str, *question: Any) -> Any:
        if name == SEARCH:
            require_compiling()
        return solved(name, *question)

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    _product_mapper.cache_clear()
    monkeypatch.setattr(mapped_products, "_solved", asked)
    yield
    _product_mapper.cache_clear()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("machine", ["v100", "stcp920"])
def test_a_first_plan_waits_for_no_compiler(machine: str) -> None:
    planner, over = planner_of(chain(), machine), Budget(deadline_s=1e-9)
    ruled = best_plan(planner, LEFT_OPEN, over)
    assert ruled.recipe.execution == "mappings=rule"
    backend = planner.of_execution(ruled.recipe).backend
    checked = backend.plan(ruled.plan.schedule, ruled.recipe)  # type: ignore[attr-defined]
    assert checked.simulation.time_s * 1e9 == pytest.approx(cost_of(ruled.plan), rel=1e-9)
    searched = planner.program(replace(ruled.recipe, execution=""))
    assert cost_of(searched) <= cost_of(ruled.plan)
    again = best_plan(planner_of(chain(), machine), LEFT_OPEN, over)  # all mappings are known
    assert (again.recipe.execution, cost_of(again.plan)) == ("", cost_of(searched))


def test_time_is_left_for_the_check_of_the_plan_as_that_of_the_first_one_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    _product_mapper.cache_clear()
    planner, now_s, checked = planner_of(chain(), "v100"), 0.0, []

    def check(*asked: Any) -> Any:
        nonlocal now_s
        now_s += 3.0
        checked.append(asked[0])
        return check_plan(*asked)

    monkeypatch.setattr(backend_module, "check_plan", check)
    meter = Budget(UNLIMITED, deadline_s=10.0).start(lambda: now_s)
    first = planner.first(meter)
    assert first is not None
    assert meter.left_s == 4.0, "of 10, of which the check took 3"
    planner.of_execution(first.recipe).backend.generate(first.plan)
    assert len(checked) == 1, "what was found right is not checked again"


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("seconds", "execution"), [(1e6, ""), (1e-9, "mappings=rule")])
def test_a_joint_plan_compiles_searches_first_where_time_allows(seconds: float, execution: str) -> None:
    planner = planner_of(chain(), "v100")
    planner.options = replace(planner.options, plan="joint")
    found = joint_plan.begun(planner, LEFT_OPEN, Budget(UNLIMITED, deadline_s=seconds))
    assert found.recipe.execution == execution
    assert found.attempts[0].what.endswith("mappings=rule")


@pytest.mark.usefixtures("uncompiled")
def test_a_first_plan_that_a_checker_refuses_is_no_missing_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(chain(), "v100")

    def refused(_: Backend) -> Any:
        raise InternalError("refused by a checker")

    monkeypatch.setattr(type(planner.backend), "without_searches", refused)
    with pytest.raises(InternalError, match="refused by a checker"):
        best_plan(planner, LEFT_OPEN, Budget(deadline_s=1e-9))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("graph", [chain(), deep_and_small()], ids=["chain", "deep_and_small"])
def test_a_joint_plan_needs_no_searches_where_time_for_the_compiler_ends(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "SHARE_OF_COMPILER", 0.0)
    planner = planner_of(graph, "v100")
    planner.options = replace(planner.options, plan="joint")
    first = joint_plan.begun(planner, LEFT_OPEN, Budget(12, deadline_s=1e6))
    monkeypatch.setattr(mapped_products, "_solved", partial(_solved_by_rule, mapped_products._solved))
    found, backend = joint_plan.joint_plan(planner, first)
    assert cost_of(found.plan) < cost_of(first.plan)
    assert found.plan.recipe.execution == "mappings=rule"
    assert len(found.attempts) > 1
    assert all(tried.what.endswith("mappings=rule") for tried in found.attempts)
    checked = backend.plan(found.plan.schedule, found.plan.recipe)  # type: ignore[attr-defined]
    assert checked.simulation.time_s * 1e9 == pytest.approx(cost_of(found.plan), rel=1e-9)
    declared = [bound.space for bound in found.plan.schedule.quality.bounds if bound.space.rules]
    assert all("with mappings=rule" in str(space) for space in declared)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("machine", ["v100", "stcp920"])
def test_the_best_of_recipes_needs_no_searches_either(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SHARE_OF_COMPILER", 0.0)
    monkeypatch.setattr(mapped_products, "_solved", partial(_solved_by_rule, mapped_products._solved))
    planner = planner_of(chain(), machine)
    best = best_plan(planner, LEFT_OPEN, Budget(6, deadline_s=1e6))
    assert len(best.attempts) > 1
    assert all(tried.what.endswith("mappings=rule") for tried in best.attempts)
    backend = planner.planner_of(best.plan.recipe).backend
    checked = backend.plan(best.plan.schedule, best.plan.recipe)  # type: ignore[attr-defined]
    assert checked.simulation.time_s * 1e9 == pytest.approx(cost_of(best.plan), rel=1e-9)


@pytest.mark.parametrize(("of_first", "order"), [(1e9, ["joined", "ago"]), (1.5, ["ago", "joined"])])
def test_papers_plan_large_networks_before_layers_join_unless_they_are_late(
    of_first: float, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = planner_of(deep_and_small(), "v100")
    planner.options = replace(planner.options, plan="joint")
    steps = list[str]()

    def program(self: Planner, recipe: Recipe) -> Program:
        if self.graph is not planner.graph:
            steps.append(recipe.partition)
        return planned(self, recipe)

    def join(*asked: Any) -> Any:
        steps.append("joined")
        return joined(*asked)

    planned, joined = Planner.program, joint_blocks.joined
    monkeypatch.setattr(Planner, "program", program)
    monkeypatch.setattr(joint_plan, "joined", join)
    monkeypatch.setattr(joint_blocks, "_MOST_AT_FIRST", 1)
    monkeypatch.setattr(joint_plan, "OF_FIRST", of_first)
    found, _ = joint_plan.joint_plan(planner, joint_plan.begun(planner, LEFT_OPEN, Budget(8, deadline_s=1e6)))
    assert found.plan.recipe.splits_sums
    assert steps.index(order[0]) < steps.index(order[1])


@pytest.mark.parametrize("only", [(), ("kernels", "stages", "sums")])
def test_what_is_frozen_is_planned_however_long_it_takes(
    only: tuple[Choice, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, refused = planner_of(chain(), "v100"), set[bool]()
    price = type(planner.backend).price

    def priced(self: Backend, recipe: Recipe, *, only_better: bool = False) -> Any:
        refused.add(only_better)
        return price(self, recipe, only_better=only_better)

    planner.options = replace(planner.options, plan="joint", only=only)
    planner.begin(Budget(UNLIMITED, deadline_s=1e6))
    monkeypatch.setattr(type(planner.backend), "price", priced)
    planner.program(replace(PLAIN_RECIPE, memory=planner.backend.default_recipe.memory))
    assert (True in refused) == (not only), "what takes longer than the best is refused unless it is frozen"


def _solved_by_rule(solved: Any, name: str, *question: Any) -> Any:
    if name == SEARCH:
        require_compiling()
        raise AssertionError("it is not compiled")
    return solved(name, *question)
