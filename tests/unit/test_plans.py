"""`tw.plan` and `tilewright plan`: combinations of planners and targets, and what they cost."""

# mypy: disable-error-code="return-value"

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

import tilewright as tw
from tilewright.api.plans import PlanComparison, PlannedCombination
from tilewright.compiler import plan as compile_plan
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.progress import NOTICE
from tilewright.schedule import SCHEDULERS
from tilewright.target_ref import TargetRef

pytestmark = pytest.mark.sampled(7)


def plans(*names: str, **settings: Any) -> PlanComparison:
    return tw.plan(small_net(), *names, **settings)


def by_names(result: PlanComparison) -> dict[tuple[str, ...], PlannedCombination]:
    found = {(c.target, c.partition, c.schedule, c.memory): c for c in result.combinations}
    assert len(found) == len(result.combinations)
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["cpu", "stcp920"])
def test_a_row_is_what_the_compiler_plans(target: str) -> None:
    result = plans(
        target, partition="layerwise,graphturbo{alpha=1.25, dims=any}", schedule="greedy,depth-first"
    )
    assert len(result.combinations) == 4
    for row in result.combinations:
        options = Options(target=TargetRef.parse(target), partition=row.partition, schedule=row.schedule)
        program = compile_plan(load_onnx(small_net().SerializeToString()), options).program
        quality = program.schedule.quality
        assert (row.cost, row.bound, row.gap, result.unit) == (
            quality.cost,
            quality.bound,
            quality.gap,
            quality.unit,
        )
        assert row.num_subgraphs == len(program.partition.subgraphs)
        assert row.num_stages == len(program.schedule.stages)
        assert row.memory == program.recipe.memory
        assert row.is_bound_proven == quality.widest.is_proven == (target == "stcp920")
        assert program.memory is not None
        assert row.memory_levels[-1].peak_bytes == program.memory.peak_bytes
    assert {row.partition for row in result.combinations} == {
        "layerwise",
        "graphturbo{alpha=1.25, dims=any}",
    }


def test_the_cheapest_of_each_target_is_the_best() -> None:
    result = plans("cpu,stcp920", schedule="sequential,greedy,random")
    assert [best.target for best in result.best] == ["cpu", "stcp920"]
    for best in result.best:
        assert best.cost == min(c.cost for c in result.combinations if c.target == best.target and c.cost)


def test_all_is_every_registered_member_and_one_given_twice_is_one() -> None:
    result = plans("stcp920", partition="layerwise,layerwise{}", schedule="all")
    assert [c.schedule for c in result.combinations] == list(SCHEDULERS.names())
    assert all(c.error is None for c in result.combinations)


def test_auto_is_the_best_of_what_the_target_tries_and_the_row_says_what_it_was() -> None:
    everything, plain = plans("stcp920"), plans("stcp920", partition="layerwise", schedule="sequential")
    (auto,), (row,) = everything.combinations, plain.combinations
    assert "auto" not in (auto.partition, auto.schedule, auto.memory)
    assert auto.cost is not None
    assert row.cost is not None
    assert auto.cost <= row.cost


def test_what_cannot_be_planned_says_why_in_its_row() -> None:
    result = plans("cpu,stcp920", partition="layerwise", schedule="sequential,depth-first{split=true}")
    rows = by_names(result)
    refused = rows["cpu", "layerwise", "depth-first{split=true}", "auto"]
    assert refused.error == (
        "depth-first: split is set, but the target runs whole subgraphs only; leave it out."
    )
    assert refused.cost is None
    assert not refused.is_best
    assert sum(c.error is not None for c in result.combinations) == 1
    assert f"{refused.error}" in str(result)


def test_energy_is_in_picojoules_where_it_is_known_and_an_error_where_it_is_not() -> None:
    energy, edp = plans("stcp920", hint="energy"), plans("stcp920", hint="edp")
    assert (energy.unit, edp.unit) == ("pJ", "pJ ns")
    (row,) = energy.combinations
    assert row.cost is not None
    assert row.bound is not None
    assert 0 < row.bound <= row.cost
    with pytest.raises(tw.UsageError, match="energy is unavailable on the cpu target"):
        plans("cpu", hint="energy")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "greedi"}, "Unknown scheduler 'greedi'. Did you mean greedy?"),
        ({"partition": "graphturbo{alpa=1}"}, "graphturbo: unknown option 'alpa'; did you mean alpha?"),
        ({"partition": "graphturbo{alpha=1,layerwise"}, "partitioner: a brace or bracket is not closed."),
        (
            {"memory": "arena,"},
            "memory planner: a name is empty; give names with commas between them, or all.",
        ),
        ({"target": "stcp92"}, "Unknown target 'stcp92'. Did you mean stcp920 or stcp920-paper?"),
        ({"hint": "speed"}, "hint 'speed': expected one of latency, throughput, energy, edp."),
    ],
)
def test_a_wrong_name_is_an_error_before_any_planning(settings: dict[str, str], message: str) -> None:
    with pytest.raises(tw.UsageError) as caught:
        plans(**settings)
    assert str(caught.value) == message


def test_progress_counts_combinations() -> None:
    seen: list[tuple[str, int, int]] = []
    plans("cpu", schedule="sequential,greedy", progress=lambda *said: seen.append(said))
    assert {(done, total) for what, done, total in seen if what.startswith("cpu")} == {(0, 2), (1, 2)}


class Raising:
    """A scheduler that raises what it was made with."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def solve(self, problem: object, budget: object) -> object:
        raise self.error


def test_what_a_planner_raises_costs_its_row_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tilewright.api.plans._SHORT_S", 0.0)
    usual = SCHEDULERS.get
    broken = Raising(ValueError("no\nidea"))
    monkeypatch.setattr(SCHEDULERS, "get", lambda spec: broken if str(spec) == "greedy" else usual(spec))
    with caplog.at_level(NOTICE, logger="tilewright"):
        first, failed, last = plans("cpu", schedule="sequential,greedy,depth-first").combinations
    assert failed.error is not None
    assert failed.error.startswith("scheduler 'greedy' raised ValueError: no idea; ")
    assert first.cost is not None is not last.cost
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith(f"cpu, layerwise, sequential, arena: {first.cost:,.0f} ns (")
    assert told[1].startswith(f"cpu, auto, greedy, auto: no plan: {failed.error} (")


def test_an_interrupt_keeps_the_rows_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = SCHEDULERS.get
    ended = Raising(KeyboardInterrupt())
    monkeypatch.setattr(SCHEDULERS, "get", lambda spec: ended if str(spec) == "greedy" else usual(spec))
    result = plans("cpu", schedule="sequential,greedy,depth-first")
    assert result.is_interrupted
    assert [row.schedule for row in result.combinations] == ["sequential"]
    with pytest.raises(KeyboardInterrupt):
        plans("cpu", schedule="greedy,sequential")


def test_the_verb_prints_a_table_for_each_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("small.onnx")
    onnx.save(small_net(), path)
    flags = (
        "--partition",
        "layerwise,graphturbo{alpha=1.25}",
        "--schedule",
        "sequential,depth-first{split=true}",
    )
    result = tilewright("plan", path, "-t", "stcp920,cpu", *flags, "--memory", "auto")
    assert result.code == 0, result.err
    assert f"{path} on stcp920, memory longest-liveness: estimated latency" in result.out
    assert f"{path} on cpu, schedule sequential, memory arena: estimated latency" in result.out
    assert f"{path} on cpu: no plan" in result.out
    document = json.loads(tilewright("plan", path, "-t", "stcp920", *flags, "--json").out)
    assert [row["partition"] for row in document["combinations"]] == [
        *("layerwise",) * 2,
        *("graphturbo{alpha=1.25}",) * 2,
    ]
    assert tilewright("plan", path, "--hint", "energy").complaint == (
        "hint energy: energy is unavailable on the cpu target, which knows no energies of its own; give a "
        'machine file that says them, -t "cpu{energies=FILE}", or --hint latency.'
    )
