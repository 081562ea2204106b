"""The checker at the edge of each limit: a word or an instance more is too much, and each constraint is kept
by one mapping and broken by its neighbour."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tilewright.cost.options import CostOptions
from tilewright.hardware.machine import Machine, TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand, Problem, convolution
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.check import check_mapping, check_solution
from tilewright.mapping.constraints import (
    FixedSpatial,
    FixedTile,
    LoopOrder,
    NoLoop,
    SpatialDims,
    Stationary,
)
from tilewright.planning import Budget

LETTERS = "RPCK"


def machine(
    inner_bytes: int = 1 << 20, middle_bytes: int = 1 << 20, shares: str = "", holds: str = ""
) -> Machine:
    return parse_machine(
        f"""
name: small
levels:
  - {{name: Inner, capacity_bytes: {inner_bytes}, word_bits: 16, num_instances_per_parent: 2, read_pj: 1}}
  - {{name: Middle, capacity_bytes: {middle_bytes}, num_instances_per_parent: 3, read_pj: 2{holds}{shares}}}
  - {{name: Memory, capacity_bytes: 1048576, read_pj: 50}}
units:
  - {{name: mac, kind: mac, num_per_instance: 4, macs_per_cycle: {{int8: 1}}, mac_pj: 0.5}}
  - {{name: wide, kind: matrix, num_per_instance: 1, macs_per_cycle: {{int8: 1}}, mac_pj: 0.5}}
  - {{name: other, kind: vector, num_per_instance: 9, ops_per_cycle: {{int8: 1}}}}
energy_source: made up
""",
        "small",
    )


WHOLE = "R3P4C2K2"
CONV = convolution({"R": 3, "P": 4, "C": 2, "K": 2}, stride=(4, 1))


def mapping(inner: str = "", middle: str = "", memory: str = "") -> Mapping:
    """Loops written as `R3P2/K2`: temporal ones, then spatial ones."""

    def loops(text: str) -> tuple[Loop, ...]:
        return tuple(Loop(letter, int(factor)) for letter, factor in zip(text[::2], text[1::2], strict=True))

    levels = []
    for name, text in (("Memory", memory), ("Middle", middle), ("Inner", inner)):
        temporal, _, spatial = text.partition("/")
        levels.append(LevelLoops(name, loops(temporal), loops(spatial)))
    return Mapping(tuple(levels))


def rules(task: MappingProblem, given: Mapping) -> list[str]:
    return [violation.rule for violation in check_mapping(task, given)]


def with_capacity(task: MappingProblem, level: int, capacity_bytes: int) -> MappingProblem:
    levels = list(task.machine.levels)
    levels[level] = levels[level].model_copy(update={"capacity_bytes": capacity_bytes})
    return replace(task, machine=task.machine.model_copy(update={"levels": tuple(levels)}))


def words(task: MappingProblem, operand: Operand, tile: dict[str, int], *, is_inner: bool) -> int:
    """Elements that a tile's iterations touch, and with those that strides skip between them, counted."""
    number = operand.copies if is_inner else 1
    for axis in operand.axes:
        places = {
            sum(step * at for (_, step), at in zip(axis, ats, strict=True))
            for ats in product(*(range(tile.get(dim, 1)) for dim, _ in axis))
        }
        number *= len(places) if task.cost_options.skips_pixels else max(places) - min(places) + 1
    return number


TILES = [{"R": r, "P": p, "C": c, "K": k} for r in (1, 3) for p in (1, 2, 4) for c in (1, 2) for k in (1, 2)]


@pytest.mark.parametrize("double_buffered", [False, True])
@pytest.mark.parametrize("skips_pixels", [False, True])
def test_a_tile_fits_to_the_word_that_its_iterations_touch(skips_pixels: bool, double_buffered: bool) -> None:
    options = CostOptions(skips_pixels=skips_pixels, double_buffered=double_buffered)
    first, *others = CONV.operands
    copied = replace(CONV, operands=(replace(first, copies=2), *others))
    task = MappingProblem(copied, machine(), cost_options=options)
    for tile in TILES:
        inside = "".join(f"{dim}{factor}" for dim, factor in tile.items())
        outside = "".join(f"{dim}{CONV.extents[dim] // factor}" for dim, factor in tile.items())
        spread = "".join(f"{dim}{tile[dim]}" for dim in "RCK") + f"/P{tile['P']}"
        for is_inner, given in (
            (True, mapping(inside, memory=outside)),
            (True, mapping(spread, memory=outside)),
            (False, mapping(middle=inside, memory=outside)),
        ):
            need = sum(words(task, operand, tile, is_inner=is_inner) for operand in copied.operands)
            bytes_per_word = 2 if is_inner else 1
            for less in (0, 1):
                held = need * (2 if double_buffered else 1) - less
                small = with_capacity(task, 0 if is_inner else 1, held * bytes_per_word)
                # What lies in the middle level lies in part inside, which holds enough.
                assert rules(small, given) == ["capacity"] * less, (tile, is_inner, need)


def test_one_word_is_held_once_even_where_tiles_are_doubled() -> None:
    apart = ", shares: [{holds: [weight], capacity_bytes: 1}]"
    task = MappingProblem(
        CONV, machine(middle_bytes=9, shares=apart), cost_options=CostOptions(double_buffered=True)
    )
    assert rules(task, mapping(memory=WHOLE)) == []
    assert rules(task, mapping(middle="K2", memory="R3P4C2")) == ["capacity"]


def test_the_outermost_level_is_not_doubled() -> None:
    """Elements of 3 x 2 x 2 weights, 15 x 2 inputs and 4 x 2 outputs."""
    options = CostOptions(double_buffered=True)
    for held, found in ((12 + 30 + 8, []), (12 + 30 + 7, ["capacity"])):
        task = MappingProblem(CONV, machine(), cost_options=options)
        assert rules(with_capacity(task, 2, held), mapping(memory=WHOLE)) == found


@pytest.mark.parametrize(
    ("weight_bytes", "other_bytes", "found"), [(12, 38, 0), (11, 38, 1), (12, 37, 1), (11, 37, 2)]
)
def test_shares_are_held_apart_from_the_rest(weight_bytes: int, other_bytes: int, found: int) -> None:
    apart = f", shares: [{{holds: [weight], capacity_bytes: {weight_bytes}}}]"
    task = MappingProblem(CONV, machine(middle_bytes=weight_bytes + other_bytes, shares=apart))
    assert rules(task, mapping(middle=WHOLE)) == ["capacity"] * found


def test_a_level_has_no_room_for_what_it_does_not_hold_and_needs_none() -> None:
    task = MappingProblem(CONV, machine(middle_bytes=12, holds=", holds: [weight]"))
    assert rules(task, mapping(middle=WHOLE)) == []
    everything = ", holds: [weight], shares: [{holds: [weight], capacity_bytes: 12}]"
    assert (
        rules(MappingProblem(CONV, machine(middle_bytes=12, shares=everything)), mapping(middle=WHOLE)) == []
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (mapping("R3C2K2", "/P2", "/P2"), []),
        (mapping("R3C2", "K2/P2", "/P3"), []),  # padded
        (mapping("R3C2K2", "", "/P4"), ["instances"]),
        (mapping("R3C2K2", "/P4"), ["instances"]),
        (mapping("R3/P4", "C2K2"), []),
        (mapping("R3/P5", "C2K2"), []),
        (mapping("R3/P4K2", "C2"), ["instances"]),
    ],
)
def test_as_many_are_spread_as_there_are_instances_and_units(given: Mapping, found: list[str]) -> None:
    assert rules(MappingProblem(CONV, machine()), given) == found


def test_a_machine_without_units_computes_one_at_a_time() -> None:
    bare = machine().model_copy(update={"units": ()})
    assert rules(MappingProblem(CONV, bare), mapping("R3P4C2K2/R1")) == []
    assert rules(MappingProblem(CONV, bare), mapping("R3P4C2/K2")) == ["instances"]


def test_all_mistakes_of_one_mapping_are_listed() -> None:
    bad = mapping("R0P2", "Z2/C4K1", "K1")
    task = MappingProblem(CONV, machine(inner_bytes=2))
    assert rules(task, bad) == ["dim", "factor", "cover", "cover", "cover", "instances", "capacity"]


@pytest.mark.parametrize(
    ("constraint", "kept", "broken"),
    [
        (FixedSpatial("Middle", "P", 2), mapping("R3C2K2", "P2/P2"), mapping("R3C2K2", "P4")),
        (FixedSpatial("Middle", "P", 1), mapping("R3C2K2", "P4"), mapping("R3C2K2", "P2/P2")),
        (FixedSpatial("Middle", "K", 0), mapping("R3C2P4", "/K2"), mapping("R3C2P4", "K2")),
        (FixedSpatial("Middle", "K", 7), mapping("R3C2P4", "/K2"), mapping("R3C2P4", "K2")),
        (FixedSpatial("Middle", "N", 2), mapping(WHOLE), None),
        (FixedSpatial("Middle", "N", 0), mapping(WHOLE), None),
        (SpatialDims("Middle", ("P",)), mapping("R3C2K2", "P2/P2K1"), mapping("R3C2P4", "/K2")),
        (SpatialDims("Middle", ("P", "K")), mapping("R3C2P4", "/K2"), mapping("R3P4K2", "/C2")),
        (FixedTile("Middle", "P", 2), mapping("R3C2", "P2K2", "P2"), mapping("R3C2", "P4K2")),
        (FixedTile("Middle", "P", 4), mapping("R3C2P2", "K2/P2"), mapping("R3C2", "P2K2", "P2")),
        (FixedTile("Inner", "P", 2), mapping("R3C2P2", "P2K2"), mapping("R3C2", "P4K2")),
        (FixedTile("Inner", "P", 2), mapping("R3C2/P2", "P2K2"), mapping("R3C2P4", "K2")),
        (FixedTile("Middle", "K", 0), mapping("R3C2P4", "K2"), mapping("R3C2P4", "", "K2")),
        (FixedTile("Middle", "K", 9), mapping("R3C2P4", "K2"), mapping("R3C2P4", "", "K2")),
        (FixedTile("Middle", "N", 2), mapping(WHOLE), None),
        (FixedTile("Middle", "N", 0), mapping(WHOLE), None),
        (LoopOrder("Middle", ("P", "K")), mapping("R3C2", "P4K2"), mapping("R3C2", "K2P4")),
        (LoopOrder("Middle", ("P", "K")), mapping("R3C2", "K2", "P4"), mapping("R3", "P4K2C2")),
        (LoopOrder("Middle", ("P", "K")), mapping("R3C2", "P2C1K2/P2"), mapping("R3", "C2P4K2")),
        (LoopOrder("Middle", ("*", "K")), mapping("R3", "C2P4K2"), mapping("R3", "C2K2P4")),
        (LoopOrder("Middle", ("P", "*", "K")), mapping("R3", "P4C2K2"), mapping("R3", "C2P4K2")),
        (NoLoop("Middle", "P"), mapping("R3C2", "P1K2/P2", "P2"), mapping("R3C2", "P2K2", "P2")),
        (Stationary("Middle", TensorKind.WEIGHT), mapping("R3", "K2C2P4"), mapping("R3", "K2P4C2")),
        (Stationary("Middle", TensorKind.OUTPUT), mapping("R3", "K2P4C2"), mapping("R3", "C2P4K2")),
        (Stationary("Middle", TensorKind.INPUT), mapping("R3", "C2P4K2"), mapping("R3", "K2P4C2")),
    ],
)
def test_a_constraint_is_kept_or_broken(constraint: object, kept: Mapping, broken: Mapping | None) -> None:
    task = MappingProblem(CONV, machine())
    task = replace(task, constraints=task.constraints.of([constraint]))  # type: ignore[list-item]
    assert rules(task, kept) == []
    if broken is not None:
        assert rules(task, broken) == ["constraint"]


def test_constraints_are_of_levels_that_a_mapping_leaves_out_too() -> None:
    task = MappingProblem(CONV, machine())
    left_out = Mapping(tuple(level for level in mapping(WHOLE).levels if level.level != "Middle"))
    for constraint, found in (
        (FixedTile("Middle", "P", 4), []),
        (FixedTile("Middle", "P", 2), ["constraint"]),
        (FixedSpatial("Middle", "P", 2), ["constraint"]),
    ):
        assert rules(replace(task, constraints=task.constraints.of([constraint])), left_out) == found


def test_all_operands_of_a_kind_count() -> None:
    """A sum of two inputs, one of which depends on a row alone."""
    both, rows = (
        Operand(name, TensorKind.INPUT, axes)
        for name, axes in (("a", ((("P", 1),), (("K", 1),))), ("b", ((("P", 1),),)))
    )
    out = Operand("y", TensorKind.OUTPUT, ((("P", 1),), (("K", 1),)))
    task = MappingProblem(
        Problem("add", (("P", 4), ("K", 2)), (both, rows, out)), machine(middle_bytes=8 + 4 + 8)
    )
    assert rules(task, mapping(middle="P4K2")) == []
    assert rules(with_capacity(task, 1, 19), mapping(middle="P4K2")) == ["capacity"]
    task = replace(task, constraints=task.constraints.of([Stationary("Memory", TensorKind.INPUT)]))
    assert rules(task, mapping(memory="K2P4")) == []


def test_what_a_mapper_says_of_its_mapping_holds_to_the_last_unit() -> None:
    task = MappingProblem(CONV, machine())
    answer = MAPPERS.get("cosa").solve(task, Budget())
    assert isinstance(answer, MappingSolution)
    cost = answer.cost

    def saying(**changes: Any) -> MappingSolution:
        said = replace(cost, **changes)
        return replace(answer, cost=said, quality=replace(answer.quality, cost=float(said.cycles), bounds=()))

    at_the_bound = saying(cycles=answer.bound_cycles, energy_pj=answer.bound_energy_pj)
    assert check_solution(task, at_the_bound) == ()
    rounded = saying(cycles=answer.bound_cycles, energy_pj=answer.bound_energy_pj * (1 - 1e-14))
    assert check_solution(task, rounded) == ()
    wrong = replace(answer, mapping=mapping(memory="R3P4C2"))
    assert {"cover", "work"} <= {violation.rule for violation in check_solution(task, wrong)}
    for changes, rule in (
        ({"cycles": answer.bound_cycles - 1}, "bound"),
        ({"energy_pj": answer.bound_energy_pj * (1 - 1e-9)}, "bound"),
        ({"compute_cycles": cost.compute_cycles + 1}, "work"),
        ({"num_units_used": cost.num_units_used + 1}, "work"),
    ):
        found = check_solution(task, saying(**changes))
        assert [violation.rule for violation in found] == [rule]
