"""Stages by measurement, on a bench that knows what everything takes: what is measured, and what chosen."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx.parser
import pytest

import tilewright as tw
from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.roofline import Roofline
from tilewright.errors import UsageError
from tilewright.ir.graph import Graph
from tilewright.partition.base import PartitionProblem
from tilewright.partition.layerwise import Layerwise
from tilewright.planning import UNLIMITED, Budget, Limits, Meter, Status
from tilewright.schedule import ScheduleProblem, check_schedule
from tilewright.schedule.base import MeasuredStages, NotMeasured, Schedule, Stage
from tilewright.schedule.ios.planner import Ios

Work = frozenset[int]
BUDGET = Budget(UNLIMITED, 1e6)


@functools.cache
def network(num_branches: int = 3) -> Graph:
    """Products of one input, each of another size and with a softmax behind it, side by side: 0 and 1, 2 and
    3, and so on; the last one puts them together."""
    sizes = [8 + 8 * i for i in range(num_branches)]
    weights = ", ".join(f"float[16,{size}] w{i}" for i, size in enumerate(sizes))
    rows = " ".join(f"a{i} = MatMul(x, w{i}) b{i} = Softmax(a{i})" for i in range(num_branches))
    parts = ", ".join(f"b{i}" for i in range(num_branches))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[8,16] x, {weights}) => (float[8,{sum(sizes)}] y) {{ {rows} y = Concat<axis=1>({parts}) }}"""
    return tw.load(onnx.parser.parse_model(text)).graph


@dataclass
class Bench:
    """Each subgraph alone takes 100 ns; a stage saves what `saved` says of its subgraphs.

    `clock` runs on by a second for each schedule that is measured.
    """

    num_subgraphs: int
    saved: Mapping[Work, float] = field(default_factory=dict)
    bad: Mapping[Work, str] = field(default_factory=dict)
    memory: dict[Work, float | NotMeasured] = field(default_factory=dict)
    loses: bool = False
    interrupt_at: int = -1
    now_s: float = 0.0
    measured: list[tuple[Stage, ...]] = field(default_factory=list)
    raced: list[tuple[Stage, ...]] = field(default_factory=list)
    num_closed: int = 0

    def remembered(self, stage: Stage) -> float | NotMeasured | None:
        return self.memory.get(work(stage))

    def measure(self, stages: Sequence[Stage], most_s: float | None) -> MeasuredStages | NotMeasured:
        if len(self.measured) == self.interrupt_at:
            raise KeyboardInterrupt
        self.now_s += 1.0
        self.measured.append(tuple(stages))
        for stage in stages:
            if work(stage) in self.bad:
                return NotMeasured(self.bad[work(stage)], "as it is told to")
        times = tuple(100.0 * len(work(s)) * (1 - self.saved.get(work(s), 0.0)) for s in stages)
        for stage, time_ns in zip(stages, times, strict=True):
            self.memory[work(stage)] = time_ns / (100.0 * len(work(stage)))
        alone = (100.0,) * self.num_subgraphs
        return MeasuredStages(times, alone, sum(times), sum(alone))

    def failed(self, stage: Stage, failure: NotMeasured) -> None:
        self.memory[work(stage)] = failure

    def race(self, stages: Sequence[Stage], most_s: float | None) -> bool | None:
        self.raced.append(tuple(stages))
        return not self.loses and sum(self.saved.get(work(s), 0.0) for s in stages) > 0

    def close(self) -> None:
        self.num_closed += 1


def work(stage: Stage) -> Work:
    return frozenset(i.subgraph_id for i in stage.instances())


@dataclass(frozen=True)
class Model(Roofline):
    """Two cores halve every kernel, but this model does not know how far."""

    proves_bounds: bool = False

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        return super().kernel(work).scaled(3.0 if num_cores == 1 else 1.0)


def problem_of(**facts: object) -> tuple[ScheduleProblem, Bench]:
    partition = Layerwise().solve(PartitionProblem(network()), Budget())
    bench = Bench(len(partition.subgraphs), **facts)  # type: ignore[arg-type]
    cost = Model(1.0, 1.0, 1.0, "by hand")
    limits = Limits(num_groups=4, num_cores=2)
    return ScheduleProblem(partition, cost=cost, limits=limits, bench=bench), bench


def solved(problem: ScheduleProblem, budget: Budget = BUDGET, *, max_groups: int = 2) -> Schedule:
    planner = Ios(costs="measured", strategy="parallel", max_groups=max_groups)
    schedule = planner.solve(problem, budget)
    assert not check_schedule(problem, schedule)
    assert schedule.quality.status is not Status.OPTIMAL  # estimates certify no measurement
    return schedule


def stages_of(schedule: Schedule) -> set[Work]:
    return {work(stage) for stage in schedule.stages if len(work(stage)) > 1}


PAIR, OTHER = frozenset({0, 2}), frozenset({1, 3})


def test_what_saves_time_is_found_though_the_model_expects_it_of_others() -> None:
    problem, bench = problem_of(saved={PAIR: 0.3})
    schedule = solved(problem)
    assert stages_of(schedule) == {PAIR}
    note = schedule.provenance.note
    assert f"{schedule.provenance.num_evaluations} stages measured" in note
    assert f"in {len(bench.measured)} schedules" in note
    assert "stages take 640 ns, operators one after another 700 ns" in note
    assert "no schedule costs less by measured stages" in note
    assert "faster in a race" in note
    assert bench.num_closed == 1


def test_what_saves_nothing_in_a_race_is_not_taken() -> None:
    problem, bench = problem_of(saved={PAIR: 0.3}, loses=True)
    schedule = solved(problem)
    assert not stages_of(schedule)
    assert bench.raced
    assert "race" not in schedule.provenance.note


def test_where_nothing_saves_time_everything_runs_alone() -> None:
    problem, _ = problem_of()
    assert not stages_of(solved(problem))


def test_stages_of_an_earlier_search_are_not_measured_again() -> None:
    problem, first = problem_of(saved={PAIR: 0.3, OTHER: 0.2})
    assert stages_of(solved(problem)) == {PAIR, OTHER}
    again, second = problem_of(saved={PAIR: 0.3, OTHER: 0.2}, memory=dict(first.memory))
    schedule = solved(again)
    assert stages_of(schedule) == {PAIR, OTHER}
    assert len(second.measured) < len(first.measured)
    assert "remembered" in schedule.provenance.note


@pytest.mark.parametrize("reason", ["crashed", "hung", "wrong-values"])
def test_a_stage_that_goes_wrong_is_singled_out_and_not_chosen(reason: str) -> None:
    problem, bench = problem_of(saved={PAIR: 0.5, OTHER: 0.4}, bad={PAIR: reason})
    schedule = solved(problem)
    assert stages_of(schedule) == {OTHER}
    failed = {w: f for w, f in bench.memory.items() if isinstance(f, NotMeasured)}
    assert failed == {PAIR: NotMeasured(reason, "as it is told to")}
    again, _ = problem_of(saved={PAIR: 0.5, OTHER: 0.4}, memory=dict(bench.memory))
    assert stages_of(solved(again)) == {OTHER}


def test_an_interrupt_leaves_what_was_measured_and_the_best_of_it() -> None:
    problem, bench = problem_of(saved={frozenset(range(4)): 0.3}, interrupt_at=2)
    schedule = solved(problem)
    assert schedule.quality.status is Status.CUT_OFF
    assert schedule.provenance.is_interrupted
    assert len(bench.measured) == 2
    assert bench.num_closed == 1
    assert any(isinstance(ratio, float) for ratio in bench.memory.values())
    saved = sum(bench.saved.get(work(stage), 0.0) for stage in bench.measured[1])
    assert (schedule.stages == bench.measured[1]) == (saved > 0)


def test_an_interrupt_before_anything_was_measured_leaves_the_estimates() -> None:
    problem, _ = problem_of(interrupt_at=0)
    schedule = solved(problem)
    assert "nothing was measured: it was interrupted" in schedule.provenance.note
    assert schedule.provenance.is_interrupted
    assert stages_of(schedule)


def test_times_that_are_no_numbers_are_measured_again_and_never_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, bench = problem_of(saved={PAIR: 0.3})
    measure, calls = bench.measure, []

    def measured(stages: Sequence[Stage], most_s: float | None) -> MeasuredStages | NotMeasured:
        found = measure(stages, most_s)
        calls.append(stages)
        is_wrong = len(calls) == 1 or any(work(stage) == OTHER for stage in stages)
        if is_wrong and isinstance(found, MeasuredStages):
            return replace(found, stages_ns=(float("nan"), *found.stages_ns[1:]))
        return found

    monkeypatch.setattr(bench, "measure", measured)
    schedule = solved(problem)
    assert calls[0] == calls[1]  # the sequential schedule, again
    assert stages_of(schedule) == {PAIR}


def test_without_anything_to_measure_with_the_estimates_stand() -> None:
    problem, bench = problem_of(bad={frozenset({0}): "declined"})
    schedule = solved(problem)
    assert "nothing was measured: as it is told to" in schedule.provenance.note
    assert len(bench.measured) == 1


def test_a_time_that_is_over_ends_the_search_with_the_races_still_run() -> None:
    problem, bench = problem_of(saved={PAIR: 0.3})
    meters: list[Meter] = []
    start = Budget.start

    def started(budget: Budget) -> Meter:
        meters.append(start(budget, lambda: bench.now_s))  # each schedule takes a second of it
        return meters[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "start", started)
        schedule = solved(problem, Budget(UNLIMITED, 6.0))
    assert schedule.quality.status is Status.CUT_OFF
    assert "stages that promise to cost less were not measured" in schedule.provenance.note
    assert 2 <= len(bench.measured) <= 5


def test_a_count_of_evaluations_bounds_the_schedules() -> None:
    problem, bench = problem_of(saved={PAIR: 0.3})
    solved(problem, Budget(300))
    assert len(bench.measured) == 3


def test_measuring_is_for_budgets_that_are_times() -> None:
    problem, bench = problem_of()
    for budget in (Budget(), Budget(UNLIMITED, 1.0)):
        Ios().solve(problem, budget)
        assert not bench.measured
    Ios().solve(problem, Budget(UNLIMITED, 60.0))
    assert bench.measured


def test_where_nothing_measures_it_is_one_error() -> None:
    problem, _ = problem_of()
    with pytest.raises(UsageError, match="costs=measured: nothing measures stages here"):
        Ios(costs="measured").solve(replace(problem, bench=None), Budget())
    with pytest.raises(UsageError, match="for latency"):
        Ios(costs="measured").solve(replace(problem, objective="edp"), Budget())
