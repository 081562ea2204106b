"""How many positions a window touches, counted without visiting them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tilewright.cost.bound import (
    check_smallest_tiles,
    energy_bound_pj,
    latency_bound_cycles,
    level_capacities,
    num_mac_units,
    num_touched,
    objective_bound,
    touched_words,
    transfer_cycles,
)
from tilewright.cost.nest_table import distinct_positions
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine, TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.loops.problem import Operand, Problem, convolution


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("step", "move"), list(product(range(1, 7), repeat=2)))
def test_two_indices_touch_what_they_visit(step: int, move: int) -> None:
    for p, r in product(range(1, 9), repeat=2):
        visited = len({step * i + move * j for i in range(p) for j in range(r)})
        assert num_touched((("P", step), ("R", move)), {"P": p, "R": r}) == visited
        assert distinct_positions(p, step, r, move) == visited


def test_three_indices_touch_what_they_visit() -> None:
    for a, b, c in product(range(1, 5), repeat=3):
        for p, r, s in product((1, 2, 5), repeat=3):
            visited = len({a * i + b * j + c * k for i in range(p) for j in range(r) for k in range(s)})
            assert num_touched((("P", a), ("R", b), ("S", c)), {"P": p, "R": r, "S": s}) == visited


def test_huge_windows_take_no_time() -> None:
    extent = 1 << 40
    assert num_touched((("P", 1), ("R", 1)), {"P": extent, "R": extent}) == 2 * extent - 1
    assert num_touched((("P", 3), ("R", 2)), {"P": extent, "R": 2}) == 2 * extent


@pytest.mark.parametrize(
    ("port", "cycles"), [("", (12 + 6) * 2), (", has_shared_port: true", (12 + 6) * 2 + 8 * 4)]
)
def test_words_that_come_in_and_go_out_take_turns_where_they_share_a_port(port: str, cycles: int) -> None:
    """A product of 4 x 3 weights and 3 x 2 inputs, 8 sums, 24 multiplications."""
    rates = "read_bytes_per_cycle: 0.5, write_bytes_per_cycle: 0.25"
    machine = parse_machine(
        f"name: slow\nlevels: [{{name: Buffer, capacity_bytes: 64}}, {{name: Memory, {rates}{port}}}]\n"
        "units: [{name: mac, kind: mac, macs_per_cycle: {int8: 1}}]\n"
    )
    assert latency_bound_cycles(convolution({"K": 4, "C": 3, "P": 2}), machine) == cycles


def two_levels(buffer: str = "capacity_bytes: 64", memory: str = "read_pj: 50, write_pj: 80") -> Machine:
    return parse_machine(
        f"""
name: small
levels:
  - {{name: Buffer, {buffer}, num_instances_per_parent: 2, read_pj: 2, write_pj: 3, words_per_access: 2}}
  - {{name: Memory, {memory}}}
units: [{{name: mac, kind: mac, num_per_instance: 3, macs_per_cycle: {{int8: 1}}, mac_pj: 0.5}}]
energy_source: made up
""",
        "small",
    )


PRODUCT = convolution({"K": 4, "C": 3, "P": 2})  # 24 multiplications of 12 weights and 6 inputs to 8 sums


def test_energy_is_at_least_one_transfer_of_each_word_between_neighbours_and_one_access_a_product() -> None:
    machine = two_levels()
    # 24 products by threes are 8 accesses of a buffer: fewer than 12 weights, more than 6 inputs.
    weights = (12 * 2 + 12 * 3) / 2 + 12 * 50
    inputs = (8 * 2 + 6 * 3) / 2 + 6 * 50
    sums = (8 + 8) * 3 / 2 + 8 * 80
    energy = 24 * 0.5 + weights + inputs + sums
    assert energy_bound_pj(PRODUCT, machine) == energy
    assert energy_bound_pj(PRODUCT, machine, CostOptions(elides_first_fills=True)) == energy - 8 * 3 / 2
    assert objective_bound(PRODUCT, machine, "energy") == energy
    assert objective_bound(PRODUCT, machine, "latency") == latency_bound_cycles(PRODUCT, machine) == 24 / 6
    assert objective_bound(PRODUCT, machine, "edp") == 4 * energy
    elided = CostOptions(elides_first_fills=True)
    assert objective_bound(PRODUCT, machine, "energy", elided) == energy - 8 * 3 / 2
    assert objective_bound(PRODUCT, machine, "edp", elided) == 4 * (energy - 8 * 3 / 2)
    bypassed = two_levels("capacity_bytes: 64, holds: [input, output]")
    assert energy_bound_pj(PRODUCT, bypassed) == energy - (12 * 2 + 12 * 3) / 2
    # Half as many units: each word of the buffer serves half as many products.
    assert num_mac_units(machine) == 6


def test_products_come_from_the_innermost_level_alone() -> None:
    """240 products by threes are 80 accesses there of 12 weights; from memory each comes once."""
    longer = convolution({"K": 4, "C": 3, "P": 20})
    weights = (80 * 2 + 12 * 3) / 2 + 12 * 50
    inputs = (80 * 2 + 60 * 3) / 2 + 60 * 50
    sums = (80 + 80) * 3 / 2 + 80 * 80
    assert energy_bound_pj(longer, two_levels()) == 240 * 0.5 + weights + inputs + sums


def test_an_access_for_several_instances_costs_each_its_part() -> None:
    shared = two_levels("capacity_bytes: 64, num_instances_per_access: 2")
    alone = two_levels()
    of_buffer = energy_bound_pj(PRODUCT, alone) - 24 * 0.5 - (12 + 6) * 50 - 8 * 80
    assert energy_bound_pj(PRODUCT, shared) == energy_bound_pj(PRODUCT, alone) - of_buffer / 2


@pytest.mark.parametrize(
    ("buffer", "double_buffered", "parts"),
    [
        ("capacity_bytes: 64", False, [(64, 1)]),
        ("capacity_bytes: 64", True, [(32, 2)]),
        ("capacity_bytes: 65", True, [(32, 2)]),
        ("capacity_bytes: 1", True, [(1, 1)]),
        ("capacity_bytes: 2", True, [(1, 2)]),
        ("capacity_bytes: 65, word_bits: 16", False, [(32, 1)]),
        ("capacity_bytes: 64, shares: [{holds: [weight], capacity_bytes: 24}]", False, [(24, 1), (40, 1)]),
        (
            "capacity_bytes: 64, holds: [weight], shares: [{holds: [weight], capacity_bytes: 24}]",
            False,
            [(24, 1)],
        ),
    ],
)
def test_a_levels_parts_are_its_shares_and_the_rest(
    buffer: str, double_buffered: bool, parts: list[tuple[int, int]]
) -> None:
    machine = two_levels(buffer, "capacity_bytes: 100")
    options = CostOptions(double_buffered=double_buffered)
    found = level_capacities(machine, machine.levels[0], options)
    assert [(words, halves) for _, words, halves in found] == parts
    assert [
        (words, halves) for _, words, halves in level_capacities(machine, machine.levels[1], options)
    ] == [(100, 1)]


@pytest.mark.parametrize(
    ("needed", "level", "buffer", "options"),
    [
        # One word of each tensor inside, each tensor whole in memory.
        (3, "Buffer", "capacity_bytes: {}", CostOptions()),
        (6, "Buffer", "capacity_bytes: {}, word_bits: 16", CostOptions()),
        (6, "Buffer", "capacity_bytes: {}", CostOptions(double_buffered=True)),
        (26, "Memory", "capacity_bytes: 64", CostOptions()),
        (26, "Memory", "capacity_bytes: 64", CostOptions(double_buffered=True)),
    ],
)
def test_the_smallest_tiles_fit_to_the_byte(
    needed: int, level: str, buffer: str, options: CostOptions
) -> None:
    def machine(size: int) -> Machine:
        return two_levels(buffer.format(size), f"capacity_bytes: {size if level == 'Memory' else 999}")

    check_smallest_tiles(PRODUCT, machine(needed), options)
    with pytest.raises(InfeasibleMapping) as error:
        check_smallest_tiles(PRODUCT, machine(needed - 1), options)
    names = f"level {level}: Weights, Inputs and Outputs need"
    remedy = f"Give it {needed} bytes, or"
    assert str(error.value).startswith(
        f"{names} 3 words even for one iteration; there are 2. {remedy} let some of them bypass it"
        if level == "Buffer"
        else f"{names} 26 words, most Weights with 12; there are 25. {remedy} leave capacity_bytes out"
    )


def test_what_a_stride_skips_need_not_be_held() -> None:
    """Of rows with stride 4 windows of 2 read 4 elements of 6."""
    strided = convolution({"P": 2, "R": 2}, stride=(4, 1))
    for options, inputs in ((CostOptions(), 6), (CostOptions(skips_pixels=True), 4)):
        needed = 2 + inputs + 2
        check_smallest_tiles(strided, two_levels(memory=f"capacity_bytes: {needed}"), options)
        with pytest.raises(InfeasibleMapping):
            check_smallest_tiles(strided, two_levels(memory=f"capacity_bytes: {needed - 1}"), options)


def test_words_that_copies_need_are_held_in_the_innermost_level() -> None:
    first, *others = PRODUCT.operands
    copied = replace(PRODUCT, operands=(replace(first, copies=5), *others))
    check_smallest_tiles(copied, two_levels("capacity_bytes: 7"))
    with pytest.raises(InfeasibleMapping, match=r"need 7 words .* there are 6\. Give it 7 bytes"):
        check_smallest_tiles(copied, two_levels("capacity_bytes: 6"))


def test_a_share_is_named_with_what_it_needs() -> None:
    machine = two_levels("capacity_bytes: 9, word_bits: 16, shares: [{holds: [weight], capacity_bytes: 1}]")
    with pytest.raises(
        InfeasibleMapping,
        match=r"need 1 word even .*; there are 0\. Give its share of weight 2 bytes, or let Weights bypass",
    ):
        check_smallest_tiles(PRODUCT, machine)
    machine = two_levels("capacity_bytes: 9, shares: [{holds: [weight], capacity_bytes: 8}]")
    with pytest.raises(InfeasibleMapping, match="Give it 10 bytes"):
        check_smallest_tiles(PRODUCT, machine)


def test_axes_that_share_a_dim_touch_as_much_as_the_longest() -> None:
    diagonal = Operand("d", TensorKind.INPUT, ((("P", 1),), (("P", 1), ("R", 1)), (("K", 1),)))
    problem = Problem("diagonal", (("P", 3), ("R", 2), ("K", 5)), (diagonal,))
    assert touched_words(problem, diagonal) == 4 * 5


@pytest.mark.parametrize(
    ("read", "written", "cycles"), [(8, 0, 4), (9, 0, 5), (0, 8, 8), (8, 8, 8), (16, 9, 9), (20, 8, 10)]
)
def test_ports_move_words_side_by_side(read: int, written: int, cycles: int) -> None:
    machine = two_levels(memory="read_bytes_per_cycle: 2, write_bytes_per_cycle: 1")
    assert transfer_cycles(machine, machine.outermost, read, written) == cycles
    assert transfer_cycles(machine, machine.innermost, read, written) == 0
    wide = two_levels(memory="read_bytes_per_cycle: 4, write_bytes_per_cycle: 2, word_bits: 16")
    assert transfer_cycles(wide, wide.outermost, read, written) == cycles
