"""The longest path of layers bounds plans of whole layers, and no more than what is known between ideals."""

from __future__ import annotations

import pytest
from tests.property.test_launched_minimum import network
from tests.support.launched_kernels import RECIPES, planner_of, pricer_of
from tests.unit.joint.test_proof import GRAPHS, Case

from tilewright.joint.launched.content import Numbered
from tilewright.joint.launched.proof import path_bound
from tilewright.schedule.merge import merge_remarks


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", ["v100", "jetson-nano"])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_path_takes_more_than_what_plans_take_between_ideals(name: str, machine: str) -> None:
    case = Case(name, machine)
    whole = case.proof().whole_bound
    found = path_bound(case.pricer)
    assert whole is not None
    assert found.space == whole.space
    assert 0 < found.value <= whole.value * (1 + 1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", ["v100", "k80"])
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_of_whole_layers_takes_less(seed: int, machine: str) -> None:
    planner = planner_of(network(seed, 6), machine)
    pricer = pricer_of(planner, Numbered(planner.graph))
    bound = path_bound(pricer)
    schedules = [planner.schedule(planner.partition(r.partition), r) for r in RECIPES]
    whole = (s for s in schedules if all(split.num_instances == 1 for split in s.splits))
    costs = [s.quality.cost for s in whole if not merge_remarks(s)]
    assert bound.value <= min(costs) * (1 + 1e-9)
