"""Many mappings at once cost what the reference says of each."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.nest_table import Evaluator
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping.factors import prime_factors

# Reads and writes priced apart, an operand that passes a level by, shares, limits of bandwidth inside, a port
# that takes turns.
ODD = """
name: odd
levels:
  - name: Inner
    capacity_bytes: 64
    holds: [weight, output]
    num_instances_per_parent: 4
    num_instances_per_access: 2
    word_bits: 16
    read_bytes_per_cycle: 3
    read_pj: 1
    write_pj: 2
  - name: Outer
    capacity_bytes: 4096
    shares: [{holds: [input], capacity_bytes: 1024}]
    words_per_access: 4
    num_instances_per_parent: 2
    read_bytes_per_cycle: 7
    write_bytes_per_cycle: 5
    has_shared_port: true
    read_pj: 8
  - name: Memory
    words_per_access: 8
    read_pj: 100
    write_pj: 130
    read_bytes_per_cycle: 2
    write_bytes_per_cycle: 1
units:
  - {name: mac, kind: mac, num_per_instance: 2, macs_per_cycle: {int8: 1}, mac_pj: 0.5}
energy_source: made up
"""


@cache
def machine(name: str) -> Machine:
    return parse_machine(ODD, "odd") if name == "odd" else load_preset(name)


PROBLEMS = {
    "plain": layer("3_14_8_16_1"),
    "strided": layer("3_14_8_16_2"),
    "window": convolution({"R": 3, "S": 2, "P": 6, "Q": 4, "C": 4, "K": 6}, stride=(2, 1), dilation=(1, 3)),
    "grouped": convolution({"R": 3, "P": 4, "G": 4, "C": 2, "K": 4, "N": 2}),
    "product": layer("1_1_64_32_1"),
    "prime": convolution({"P": 7, "K": 13, "C": 5}),
}


@st.composite
def mappings(draw: st.DrawFn, problem: Problem, machine: Machine) -> Mapping:
    """Mostly legal: primes go inwards, or to spatial loops where there is free capacity."""
    names = [level.name for level in reversed(machine.levels)]
    room = {level.name: machine.fan_out(n) for n, level in enumerate(machine.levels)}
    temporal: dict[str, dict[str, int]] = {name: {} for name in names}
    spatial: dict[str, dict[str, int]] = {name: {} for name in names}
    for dim, extent in problem.dims:
        for prime, count in prime_factors(extent):
            for _ in range(count):
                sides = [name for name, left in room.items() if left >= prime]
                place = draw(
                    st.sampled_from([*(("side", name) for name in sides), *(("time", n) for n in names)])
                )
                chosen = spatial if place[0] == "side" else temporal
                if place[0] == "side":
                    room[place[1]] //= prime
                chosen[place[1]][dim] = chosen[place[1]].get(dim, 1) * prime
    levels = []
    for name in names:
        order = draw(st.permutations(sorted(temporal[name])))
        levels.append(
            LevelLoops(
                name,
                tuple(Loop(dim, temporal[name][dim]) for dim in order),
                tuple(Loop(*item) for item in spatial[name].items()),
            )
        )
    return Mapping(tuple(levels))


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_it_says_what_the_reference_says(data: st.DataObject) -> None:
    problem = PROBLEMS[data.draw(st.sampled_from(sorted(PROBLEMS)))]
    target = machine(data.draw(st.sampled_from(["odd", "simba-cosa-repo"])))
    cost_options = CostOptions(
        skips_pixels=data.draw(st.booleans()), double_buffered=data.draw(st.booleans())
    )
    mapping = data.draw(mappings(problem, target))
    table = Evaluator(problem, target, cost_options)
    cycles, energy_pj = table.evaluate(table.encode([mapping]))
    try:
        cost = evaluate(problem, target, mapping, cost_options)
    except InfeasibleMapping:
        assert np.isinf(cycles[0])
        assert np.isinf(energy_pj[0])
        return
    assert cycles[0] == cost.cycles
    assert energy_pj[0] == pytest.approx(cost.energy_pj, rel=1e-12)


def test_factors_that_do_not_cover_the_problem_are_not_legal() -> None:
    problem = PROBLEMS["product"]
    table = Evaluator(problem, machine("odd"))
    short = Mapping((LevelLoops("Memory", (Loop("C", 64), Loop("K", 16))),))
    padded = Mapping((LevelLoops("Memory", (Loop("C", 64), Loop("K", 33))),))
    cycles, _ = table.evaluate(table.encode([short, padded]))
    assert np.isinf(cycles[0])
    assert cycles[1] == evaluate(problem, machine("odd"), padded).cycles


def test_what_the_arrays_cannot_say_is_refused() -> None:
    problem = PROBLEMS["product"]
    table = Evaluator(problem, machine("odd"))
    twice = Mapping((LevelLoops("Memory", (Loop("C", 8), Loop("K", 32), Loop("C", 8))),))
    with pytest.raises(UsageError, match="two loops of C at Memory"):
        table.encode([twice])
    with pytest.raises(UsageError, match="no level Memry"):
        table.encode([Mapping((LevelLoops("Memry", (Loop("C", 8),)),))])
    with pytest.raises(UsageError, match="neighbours"):
        Evaluator(problem, machine("odd"), CostOptions(link_transfers=True))
