"""What compiled models say of their plans' cost: for every target, in one unit, also from an artifact."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.artifact.facts import decode_facts, encode_facts
from tilewright.fields import FieldError
from tilewright.planning import Bound, Quality, Space
from tilewright.steps import CostInfo


@pytest.fixture(scope="module", params=["cpu", "interpreter", "stcp920"])
def compiled(request: pytest.FixtureRequest) -> tw.CompiledModel:
    return tw.compile(small_net(), request.param, no_cache=True)


def test_every_plan_has_an_estimate_a_bound_and_a_gap(compiled: tw.CompiledModel) -> None:
    cost = compiled.cost
    assert cost is not None
    assert (cost.cost, cost.bound) == (compiled.schedule.quality.cost, compiled.schedule.quality.bound)
    assert cost.bounds == compiled.schedule.quality.bounds
    assert cost.unit == "ns"
    assert cost.gap == pytest.approx(compiled.schedule.quality.gap)
    assert cost.source
    assert compiled.to_json()["cost"]["gap"] == cost.gap
    page = compiled.report().html()
    assert "<td>at least</td>" in page
    assert ("<td>energy</td>" in page) == (cost.simulated is not None) == (compiled.target == "stcp920")


def test_an_artifact_keeps_it(compiled: tw.CompiledModel, tmp_path: Path) -> None:
    # Without a cache nothing records that the artifact was made here.
    opened = tw.open(compiled.save(tmp_path / "net.tw"), trust=True)
    assert opened.cost == compiled.cost
    assert opened.report().html() == compiled.report().html()


def test_artifacts_that_do_not_say_have_none(compiled: tw.CompiledModel) -> None:
    document = json.loads(json.dumps(encode_facts(compiled.facts)))
    assert compiled.cost is not None
    assert decode_facts(document).cost == compiled.cost
    del document["cost"]["bounds"]  # as releases did that had one bound
    old = decode_facts(document).cost
    assert old is not None
    assert (old.bound, old.is_proven) == (compiled.cost.bound, compiled.cost.is_proven)
    assert str(old.bounds[0].space) == "plans that the planner searched, as an older artifact has it"
    document["cost"]["bounds"] = []
    with pytest.raises(FieldError, match=r"^cost\.bounds: a cost needs at least one bound"):
        decode_facts(document)
    del document["cost"]
    assert decode_facts(document).cost is None


def test_a_simulated_plan_costs_what_the_simulation_says() -> None:
    simulated = tw.simulate(small_net(), partition="layerwise", schedule="greedy")
    cost = tw.compile(small_net(), "stcp920", partition="layerwise", schedule="greedy").cost
    assert cost is not None
    assert cost.simulated is not None
    ours = simulated.to_json()
    assert {key: ours[key] for key in cost.simulated.__dataclass_fields__} == {
        key: getattr(cost.simulated, key) for key in cost.simulated.__dataclass_fields__
    }
    assert cost.cost == pytest.approx(simulated.time_s * 1e9)
    assert cost.gap == pytest.approx(simulated.gap)


@pytest.mark.parametrize(("cost", "bound"), [(3.0, 2.0), (1.0, 2.0), (0.0, 0.0), (2.0, 2.0), (1.0, 0.0)])
def test_gaps_are_those_of_qualities(cost: float, bound: float) -> None:
    quality = Quality.of(cost, Bound(bound, Space("schedules"), "by hand", is_proven=False), unit="ns")
    gap = CostInfo.of(quality, "by hand").gap
    assert gap == (pytest.approx(quality.gap) if math.isfinite(quality.gap) else None)
