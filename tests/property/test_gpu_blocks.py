"""Whatever the layer and the limits of a block, what mappers answer keeps all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.problem import Problem, convolution
from tilewright.mapping.base import Mapper, MappingSolution
from tilewright.mapping.check_launch import check_launch
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import Exact
from tilewright.mapping.gpu import evaluate_blocks, solve_blocks
from tilewright.mapping.random import Random
from tilewright.planning import Budget

LAYERS = st.builds(
    lambda dims, stride: convolution(dims, stride=(stride, stride)),
    st.fixed_dictionaries(
        {
            "R": st.sampled_from([1, 3, 5]),
            "S": st.sampled_from([1, 3]),
            "P": st.integers(1, 60),
            "Q": st.integers(1, 60),
            "C": st.integers(1, 96),
            "K": st.integers(1, 130),
        }
    ),
    st.integers(1, 2),
)


@st.composite
def gpus(draw: st.DrawFn) -> Machine:
    machine = load_preset(draw(st.sampled_from(["k80", "h200", "jetson-nano"])))
    assert machine.threads is not None
    threads = machine.threads.model_copy(
        update={
            "max_per_block": draw(st.sampled_from([32, 100, 256, 1024])),
            "max_block_shape": tuple(draw(st.integers(1, 64)) for _ in range(3)),
            "max_registers_per_thread": draw(st.integers(4, 255)),
            "max_register_bytes_per_block": draw(st.integers(1 << 10, 64 << 10)),
            "max_shared_bytes_per_block": draw(st.integers(64, 48 << 10)),
        }
    )
    return machine.model_copy(update={"threads": threads})


@pytest.mark.sampled(0)
def test_cosa_keeps_every_limit() -> None:
    answered = []

    @settings(max_examples=12, deadline=None)
    @given(LAYERS, gpus(), st.sampled_from(["paper", "published"]))
    def check(problem: Problem, machine: Machine, variant: str) -> None:
        answered.append(keeps_every_limit(Cosa(variant=variant), problem, machine))  # type: ignore[arg-type]

    check()
    assert sum(answered) > len(answered) // 2  # most layers fit most machines


def test_random_search_keeps_every_limit() -> None:
    answered = []

    @settings(max_examples=12, deadline=None)
    @given(LAYERS, gpus())
    def check(problem: Problem, machine: Machine) -> None:
        answered.append(keeps_every_limit(Random(num_valid=2, max_draws=20_000), problem, machine))

    check()
    assert sum(answered) > len(answered) // 2


def test_short_searches_keep_every_limit() -> None:
    answered = []

    @settings(max_examples=12, deadline=None)
    @given(LAYERS, gpus())
    def check(problem: Problem, machine: Machine) -> None:
        answered.append(keeps_every_limit(Exact(pads=False, max_search_states=1000), problem, machine))

    check()
    assert sum(answered) > len(answered) // 2


def keeps_every_limit(mapper: Mapper, problem: Problem, machine: Machine) -> bool:
    """Whether there is an answer; it is checked."""
    try:
        found = solve_blocks(mapper, problem, machine, "latency", CostOptions(), Budget())
    except InfeasibleMapping:
        return False
    if not isinstance(found, MappingSolution):
        return False
    cost, launch = evaluate_blocks(problem, machine, found.mapping)
    assert check_launch(problem, machine, found.mapping, launch) == ()
    assert cost.cycles >= found.bound_cycles
    assert cost.energy_pj >= found.bound_energy_pj * (1 - 1e-9)
    assert cost.utilization == pytest.approx(problem.num_macs / (units(machine) * cost.cycles))
    return True


def units(machine: Machine) -> int:
    from tilewright.hardware.operator_view import operator_view

    view = operator_view(machine).machine
    return view.num_units(view.units[0])
