"""Cuts into fused blocks that a race decides between, region by region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.unit.targets.cpu.test_fused import Chain

from tilewright.ir.fuse import FusedNodes
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.layerwise import Layerwise
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.progress import PhaseClock
from tilewright.targets.cpu import target as cpu
from tilewright.targets.cpu.forms import Cuts, choose, choose_forms
from tilewright.targets.cpu.fused.prices import GroupEstimates
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune import block_race

PRICES = GroupEstimates(isa_by_name("avx512"), FusedNodes())


def inverted_residual(size: int, batch: int = 1) -> Graph:
    """Expand, depthwise, project."""
    chain = Chain(16, (size, size), batch=batch).conv(96).conv(0, 3, depthwise=True).conv(24)
    chain.graph.outputs = [chain.value]
    return chain.graph


def cuts_of(graph: Graph) -> Cuts:
    problem = PartitionProblem(graph)
    return Cuts.of(problem, Layerwise().solve(problem, Budget()), PRICES)


def test_choices_are_distinct_and_valid_and_begin_with_the_estimates_own() -> None:
    graph = inverted_residual(56)
    cuts = cuts_of(graph)
    partitions = [cuts.partition(groups) for groups in cuts.choices]
    forms = [[(s.nodes, s.form) for s in p.subgraphs] for p in partitions]
    chosen = choose_forms(cuts.problem, Layerwise().solve(cuts.problem, Budget()), PRICES)
    assert forms[0] == [(s.nodes, s.form) for s in chosen.subgraphs]
    assert () in cuts.choices
    assert len(cuts.choices) > 2
    for partition in partitions:
        assert check_partition(cuts.problem, partition) == ()
    for groups in cuts.choices:
        assert all(any(r.issuperset(g.members) for r in cuts.regions()) for g in groups)


def test_nothing_is_raced_where_no_blocks_can_gain() -> None:
    chain = Chain(16, (4, 4)).conv(8)
    chain.graph.outputs = [chain.value]
    assert cuts_of(chain.graph).choices == ((),)


@pytest.mark.parametrize(("share", "is_taken"), [(0.5, True), (0.995, False), (1.0, False), (2.0, False)])
def test_a_region_takes_what_is_clearly_faster(share: float, is_taken: bool) -> None:
    cuts = cuts_of(inverted_residual(56))
    (_,) = cuts.regions()
    for number in range(1, len(cuts.choices)):
        measured = [(c, [[10.0 * (share if i == number else 1.0)] * 9]) for i, c in enumerate(cuts.choices)]
        taken = block_race._fastest(cuts, measured)
        assert taken == cuts.choices[number if is_taken else 0]


def test_the_winner_runs_and_must_win_as_a_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contender computes the same; a race of steps picks the last, a race of models keeps it or not."""

    def raced_steps(
        executables: Sequence[CpuExecutable], feed: Mapping[str, Any], seconds: float
    ) -> list[list[list[float]]]:
        counts = [len(executable.run_profiled(feed)) for executable in executables]
        assert len(set(counts)) > 1
        return [[[100.0 / (1 + i) / count] * count] * 9 for i, count in enumerate(counts)]

    def raced(
        executables: Sequence[CpuExecutable], feed: Mapping[str, Any], seconds: float
    ) -> list[list[float]]:
        (own,), (other,) = (executable.run(feed).values() for executable in executables)
        np.testing.assert_allclose(other, own, rtol=1e-5, atol=1e-5)
        return [[10.0] * 9, [10.0 * share] * 9]

    monkeypatch.setattr(choose, "_DOUBTFUL", ())
    monkeypatch.setattr(block_race, "race_steps", raced_steps)
    monkeypatch.setattr(cpu, "race", raced)
    options = Options(no_cache=True, threads=1, budget=Budget(deadline_s=5.0))
    target = CpuTarget()
    graph = inverted_residual(28, batch=4)
    planner = Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))
    plain = planner.program(PLAIN_RECIPE)
    for share in (0.5, 1.0):
        improved = planner.backend.improve(plain, planner.ordered, Budget(deadline_s=600.0))
        program = improved.program
        assert [attempt.what for attempt in improved.attempts] == [
            f"{PLAIN_RECIPE}, fused by measurement, raced"
        ]
        forms = [[(s.nodes, s.form) for s in p.partition.subgraphs] for p in (plain, program)]
        assert (forms[0] != forms[1]) == (share < 1)
