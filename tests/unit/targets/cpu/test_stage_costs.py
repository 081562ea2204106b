"""Stages of whole models in the process that measures: which steps are whose, and what is remembered."""

# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

import tilewright as tw
from tilewright.compiler import optimise
from tilewright.options import Options
from tilewright.planner import Planner
from tilewright.planning import Bound, Provenance, Quality, Space
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.progress import PhaseClock
from tilewright.schedule.base import Group, Instance, MeasuredStages, NotMeasured, Schedule, Stage, single
from tilewright.schedule.merge import merge_stage
from tilewright.targets.cpu.lower.arrange import staged_steps
from tilewright.targets.cpu.target import CpuBackend, CpuTarget
from tilewright.targets.cpu.tune import stage_costs
from tilewright.targets.cpu.tune.stage_costs import CpuStageBench
from tilewright.tuning.workers import Failed, Measured, MeasureRequest, MeasureResult, Samples

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,8,10,10] x, float[8,8,3,3] w0, float[8,8,3,3] w1, float[8,8,3,3] w2) => (float[1,24,8,8] y) {
        a = Conv(x, w0)  b = Conv(x, w1)  c = Conv(x, w2)  d = Softmax<axis=1>(a)
        y = Concat<axis=1>(d, b, c) }"""


def constant_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name in ("w0", "w1", "w2"):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), name)
        )
    return model


@dataclass
class Pool:
    """Answers without running anything: every step of a candidate takes 10 ns, of the baseline 20."""

    failure: Failed | None = None
    requests: list[MeasureRequest] = field(default_factory=list)
    num_steps: dict[str, int] = field(default_factory=dict)
    is_closed: bool = False

    def measure(self, requests: Iterable[MeasureRequest]) -> Iterator[MeasureResult]:
        for request in requests:
            self.requests.append(request)
            if self.failure is not None and request.baseline is not None:
                yield self.failure
                continue
            samples = self.samples(request.candidate.facts["tables"]["main"]["num_steps"], 10.0)
            if request.baseline is None:
                yield Measured(samples)
            else:
                num_steps = request.baseline.facts["tables"]["main"]["num_steps"]
                yield Measured(samples, self.samples(num_steps, 20.0))

    def samples(self, num_steps: int, step_ns: float) -> Samples:
        whole_ns = num_steps * step_ns
        return Samples((whole_ns,) * 9, ((step_ns,) * num_steps,) * 9)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def bench_of(cache: Path, pool: Pool | None = None, **options: Any) -> CpuStageBench:
    asked = Options(threads=2, cache_dir=cache, **options)  # type: ignore[arg-type]
    graph, _ = optimise(tw.load(constant_model()).graph, asked)
    target = CpuTarget()
    backend = target.backend(graph, asked)
    planner = Planner(graph, target, backend, asked, PhaseClock(None, None))
    bench = planner.schedule_problem(planner.partition("layerwise"), PLAIN_RECIPE).bench
    assert isinstance(bench, CpuStageBench)
    if pool is not None:
        bench.pool = lambda: pool
    return bench


def sequential(bench: CpuStageBench) -> list[Stage]:
    return [single(i) for i in range(len(bench.partition.subgraphs))]


def names(bench: CpuStageBench) -> list[str]:
    return [s.nodes[0].op_type for s in bench.partition.subgraphs]


def beside(bench: CpuStageBench, *groups: tuple[int, ...]) -> list[Stage]:
    """These subgraphs in one stage, the others one by one."""
    stage = Stage(tuple(Group(tuple(map(Instance, group))) for group in groups))
    inside = {i for group in groups for i in group}
    stages = [single(i) for i in range(len(bench.partition.subgraphs)) if i not in inside]
    return [stage, *stages]


def test_a_real_run_gives_every_stage_its_time(cache: Path) -> None:
    bench = bench_of(cache)
    convs = [i for i, name in enumerate(names(bench)) if name == "Conv"]
    try:
        alone = bench.measure(sequential(bench), None)
        stages = beside(bench, *((i,) for i in convs))
        found = bench.measure(stages, None)
        merged = bench.measure([merge_stage(convs), *(s for s in stages[1:])], None)
        verdict = bench.race(stages, 0.1)
    finally:
        bench.close()
    for result, count in ((alone, len(names(bench))), (found, len(stages)), (merged, len(stages))):
        assert isinstance(result, MeasuredStages)
        assert len(result.stages_ns) == count
        assert len(result.alone_ns) == len(names(bench))
        assert all(result.alone_ns[i] > 0 for i in convs)
        assert result.stages_ns[0] > 0
        assert 0 < sum(result.stages_ns) <= 1.01 * result.whole_ns
    assert verdict in (True, False)


def test_times_of_steps_are_those_of_their_stages_and_are_remembered(cache: Path) -> None:
    pool = Pool()
    bench = bench_of(cache, pool)
    convs = [i for i, name in enumerate(names(bench)) if name == "Conv"]
    stages = beside(bench, *((i,) for i in convs))
    assert bench.remembered(stages[0]) is None
    bench.measure(sequential(bench), None)
    found = bench.measure(stages, None)
    assert isinstance(found, MeasuredStages)
    assert found.stages_ns[0] == 10.0  # one step beside as many as there are products
    assert sum(found.alone_ns[i] for i in convs) == 20.0 * len(convs)
    assert bench.remembered(stages[0]) == pytest.approx(1 / (2 * len(convs)))
    other = beside(bench, tuple(convs[:2]), (convs[2],))
    assert bench.remembered(other[0]) is None  # the same work, grouped in another way
    again = bench_of(cache, pool)
    assert again.remembered(stages[0]) == bench.remembered(stages[0])
    bench.close()
    assert pool.is_closed


def test_what_failed_is_told_and_remembered(cache: Path) -> None:
    pool = Pool(failure=Failed("crashed", "SIGSEGV"))
    bench = bench_of(cache, pool)
    stages = beside(bench, (0,), (1,))
    bench.measure(sequential(bench), None)
    found = bench.measure(stages, None)
    assert found == NotMeasured("crashed", "SIGSEGV")
    bench.failed(stages[0], found)
    assert bench_of(cache).remembered(stages[0]) == NotMeasured("crashed", "SIGSEGV")
    assert bench.race(stages, None) is None


def test_models_that_are_too_large_are_not_measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_costs, "_MAX_WEIGHT_BYTES", 1000)
    bench = bench_of(cache, Pool())
    found = bench.measure(sequential(bench), None)
    assert isinstance(found, NotMeasured)
    assert found.reason == "declined"
    assert "more than 1000" in found.detail
    assert bench.remembered(sequential(bench)[0]) is None


def test_a_frozen_cache_measures_nothing(cache: Path) -> None:
    options = Options(frozen=True, cache_dir=cache)
    graph, _ = optimise(tw.load(constant_model()).graph, options)
    backend = CpuTarget().backend(graph, options)
    assert isinstance(backend, CpuBackend)
    planner = Planner(graph, CpuTarget(), backend, options, PhaseClock(None, None))
    assert planner.schedule_problem(planner.partition("layerwise"), PLAIN_RECIPE).bench is None


def test_every_step_but_relayout_copies_has_its_stage(cache: Path) -> None:
    bench = bench_of(cache)
    stages = tuple(beside(bench, (0,), (1,)))
    quality = Quality.of(0, Bound(0, Space("schedules"), "by hand"), unit="ns")
    schedule = Schedule(bench.partition, stages, quality, Provenance("by hand"))
    numbers = [n for n, _ in staged_steps(bench.lowered(bench.partition), schedule, "stages")]
    inner = [n for n in numbers if n is not None]
    assert inner == sorted(inner)
    assert inner[0] == 0
