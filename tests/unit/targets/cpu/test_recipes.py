"""Which recipes the processor tries, by estimate and by race."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright import zoo
from tilewright.compiler import plan_optimised
from tilewright.cost.base import Estimate, KernelWork
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.progress import PhaseClock
from tilewright.schedule.ios import planner as ios
from tilewright.targets.cpu import target as cpu
from tilewright.targets.cpu.costs.model import CpuCosts
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.cpu.target import CpuBackend, CpuTarget

pytestmark = pytest.mark.sampled(5)


def _planner(model: onnx.ModelProto) -> Planner:
    options = Options(no_cache=True, threads=2)
    graph = load_onnx(model)
    target = CpuTarget()
    return Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))


def _schedules(planner: Planner) -> list[str]:
    return [recipe.schedule for recipe in planner.backend.recipes(planner.partition)]


def test_a_small_gain_by_estimate_keeps_the_default() -> None:
    assert _schedules(_planner(zoo.build("bert_tiny"))) == ["sequential"]


def test_a_gain_beyond_the_margin_offers_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MIN_ESTIMATED_GAIN", -1.0)
    assert _schedules(_planner(zoo.build("bert_tiny"))) == ["sequential", "greedy"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("greedy_ns", "stages_ns", "expected"),
    [
        (9.0, 9.2, "greedy"),
        (9.2, 9.0, "ios{search=beam}"),
        (10.0, 10.0, "sequential"),
        (11.0, 9.0, "ios{search=beam}"),
        (11.0, 11.0, "sequential"),
    ],
)
def test_only_a_clear_win_replaces_the_default(
    monkeypatch: pytest.MonkeyPatch, greedy_ns: float, stages_ns: float, expected: str
) -> None:
    def raced(
        executables: Sequence[CpuExecutable], feed: Mapping[str, Any], seconds: float
    ) -> list[list[float]]:
        for executable in executables:
            executable.run(feed)
        return [[10.0] * 9, [greedy_ns] * 9, [stages_ns] * 9]

    monkeypatch.setattr(cpu, "race", raced)
    monkeypatch.setattr(ios, "LEAST_ESTIMATED_GAIN", 0.0)
    planner = _planner(zoo.build("bert_tiny"))
    assert isinstance(planner.backend, CpuBackend)
    plain = planner.program(PLAIN_RECIPE)
    improved = planner.backend.improve(plain, planner.ordered, Budget(deadline_s=1.0))
    assert improved.program.recipe.schedule == expected
    for attempt in improved.attempts:
        assert attempt.cost == pytest.approx(plain.schedule.quality.cost, rel=0.2)


def test_a_chain_has_nothing_to_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "race", None)
    chain = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[8,8] x) => (float[8,8] y) '
        "{ a = MatMul(x, x) b = Softmax(a) y = MatMul(b, b) }"
    )
    planner = _planner(chain)
    plain = planner.program(PLAIN_RECIPE)
    assert planner.backend.improve(plain, planner.ordered, Budget(deadline_s=1.0)).program is plain


_BRANCHES = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[8,8] x) => (float[8,8] y) '
    "{ a = MatMul(x, x) b = Softmax(a) c = Exp(a) d = MatMul(b, c) y = Add(d, x) }"
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("candidate_ns", "is_taken"), [(9.0, True), (9.95, False), (10.0, False), (11.0, False)]
)
@pytest.mark.parametrize("budget", [None, Budget(deadline_s=1.0)])
def test_a_joint_plan_must_win_against_the_default(
    monkeypatch: pytest.MonkeyPatch, candidate_ns: float, is_taken: bool, budget: Budget | None
) -> None:
    """The plan of least estimate runs as it is measured to, whatever it was estimated to take."""
    raced: list[list[CpuExecutable]] = []

    def race(
        executables: Sequence[CpuExecutable], feed: Mapping[str, Any], seconds: float
    ) -> list[list[float]]:
        raced.append(list(executables))
        results = [executable.run(feed) for executable in executables]
        for result in results[1:]:
            assert all(np.allclose(result[name], results[0][name], rtol=1e-5) for name in result)
        return [[10.0] * 9, *([candidate_ns] * 9 for _ in executables[1:])]

    monkeypatch.setattr(cpu, "race", race)
    graph = load_onnx(onnx.parser.parse_model(_BRANCHES))
    default = plan_optimised(graph, Options(no_cache=True, threads=1)).program
    # No estimate is right: whatever is not the default seems to cost next to nothing.
    real = CpuCosts.kernel

    def kernel(costs: CpuCosts, work: KernelWork, num_cores: int | None = None) -> Estimate:
        found = real(costs, work, num_cores)
        return replace(found, time_ns=found.time_ns * 1e-3) if len(work.nodes) > 2 else found

    monkeypatch.setattr(CpuCosts, "kernel", kernel)
    asked = Options(no_cache=True, threads=1, plan="joint", budget=budget)
    planned = plan_optimised(graph, asked)
    assert len(raced) == 1
    sizes = [[len(s.nodes) for s in p.partition.subgraphs] for p in (default, planned.program)]
    assert (sizes[0] != sizes[1]) == is_taken
