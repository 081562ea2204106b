"""Machines that are too small: which level and tensor, how much is there, and the least that helps."""

from __future__ import annotations

import re

import pytest

from tilewright.cost.bound import check_smallest_tiles
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.operator_view import operator_view
from tilewright.hardware.presets import load_preset, preset_names
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, layer
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.planning import Budget

LAYER = layer("3_4_4_8_1")

SMALL = """
name: small
levels:
  - {{name: Inner, capacity_bytes: {inner}, word_bits: 24}}
  - name: Middle
    capacity_bytes: {middle}
    word_bits: 16
    shares: [{{holds: [weight], capacity_bytes: {share}}}]
  - {{name: Outer, capacity_bytes: {outer}, read_bytes_per_cycle: 1}}
units: [{{name: MAC, kind: mac, macs_per_cycle: {{int8: 1}}}}]
"""
# The least with which a layer can be mapped: three words of 24 bits; a weight, an input and an output of 16;
# all tensors.
LEAST = {
    "inner": 9,
    "share": 2,
    "middle": 6,
    "outer": sum(LAYER.num_words(operand) for operand in LAYER.operands),
}


def small(**sizes: int) -> Machine:
    return parse_machine(SMALL.format(**{**LEAST, **sizes}))


def diagnostic(problem: Problem, machine: Machine, cost_options: CostOptions = CostOptions()) -> str:  # noqa: B008 - it is frozen
    with pytest.raises(InfeasibleMapping) as caught:
        check_smallest_tiles(problem, machine, cost_options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("mapper", MAPPERS.names())
def test_the_least_that_is_advised_is_enough(mapper: str) -> None:
    check_smallest_tiles(LAYER, small())
    solution = MAPPERS.get(mapper).solve(MappingProblem(LAYER, small()), Budget.parse("2000trials"))
    assert isinstance(solution, MappingSolution)
    assert evaluate(LAYER, small(), solution.mapping).cycles == solution.cost.cycles


@pytest.mark.parametrize(
    ("size", "level", "tensors", "needed", "available"),
    [
        ("inner", "Inner", "Weights, Inputs and Outputs", 3, 2),
        ("share", "Middle", "Weights", 1, 0),
        ("middle", "Middle", "Inputs and Outputs", 2, 1),
        ("outer", "Outer", "Weights, Inputs and Outputs", LEAST["outer"], LEAST["outer"] - 1),
    ],
)
def test_one_byte_less_names_level_tensors_words_and_what_helps(
    size: str, level: str, tensors: str, needed: int, available: int
) -> None:
    lacking = {size: LEAST[size] - 1}
    if size == "share":
        lacking["middle"] = LEAST["middle"] - 1  # else the others would get the byte, and need none
    text = diagnostic(LAYER, small(**lacking))
    assert text.startswith(f"level {level}: {tensors} need {needed} word")
    assert re.search(rf"there (is|are) {available}\.", text)
    advice = re.search(r"Give it(?:s share of weight)? (\d+) bytes", text)
    assert advice is not None
    assert int(advice[1]) == LEAST[size]


def test_half_of_a_level_is_the_next_tile_s_where_it_is_double_buffered() -> None:
    cost_options = CostOptions(double_buffered=True)
    twice = {"inner": 18, "share": 4, "middle": 12}
    check_smallest_tiles(LAYER, small(**twice), cost_options)
    text = diagnostic(LAYER, small(**{**twice, "inner": 17}), cost_options)
    assert "there are 2. Give it 18 bytes" in text


def test_pixels_that_are_jumped_over_need_no_room_if_they_are_not_counted() -> None:
    strided = layer("1_4_4_8_3")
    counted = sum(strided.num_words(operand) for operand in strided.operands)
    jumped = 10 * 10 * 4 - 4 * 4 * 4
    check_smallest_tiles(strided, small(outer=counted))
    check_smallest_tiles(strided, small(outer=counted - jumped), CostOptions(skips_pixels=True))
    assert "most Inputs with 400" in diagnostic(strided, small(outer=counted - 1))
    assert "there are" in diagnostic(
        strided, small(outer=counted - jumped - 1), CostOptions(skips_pixels=True)
    )


def test_a_given_mapping_that_does_not_fit_says_the_least_capacity() -> None:
    loops = tuple(Loop(dim, extent) for dim, extent in LAYER.dims)
    mapping = Mapping((LevelLoops("Outer"), LevelLoops("Middle"), LevelLoops("Inner", loops)))
    words = {o.name: LAYER.num_words(o) for o in LAYER.operands}
    assert words == {"Weights": 288, "Inputs": 144, "Outputs": 128}
    assert evaluate(LAYER, small(inner=3 * 560, middle=2 * 560, share=2 * 288), mapping).cycles > 0
    for sizes, advice in (
        ({"inner": 3 * 560 - 1}, "Give it 1680 bytes, or take a smaller tile"),
        ({"share": 2 * 288 - 1}, "Give its share of weight 576 bytes"),
        ({"middle": 2 * 560 - 1}, "Give it 1120 bytes"),
    ):
        machine = small(**{"inner": 3 * 560, "middle": 2 * 560, "share": 2 * 288, **sizes})
        with pytest.raises(InfeasibleMapping) as caught:
            evaluate(LAYER, machine, mapping)
        assert advice in str(caught.value)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", preset_names())
def test_every_preset_takes_odd_layers(name: str) -> None:
    """Extents of one, primes, and more operations than can be counted one by one."""
    machine = operator_view(load_preset(name)).machine
    for dims in ("1_1_1_1_1", "1_1_10007_3_1", "7_13_11_5_3"):
        problem = layer(dims)
        solution = MAPPERS.get("random").solve(MappingProblem(problem, machine), Budget.parse("500trials"))
        assert isinstance(solution, MappingSolution), (dims, solution)
        assert solution.cost.cycles >= solution.bound_cycles > 0
