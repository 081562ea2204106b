"""How many positions a window touches, counted without visiting them."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.cost.bound import latency_bound_cycles, num_touched
from tilewright.cost.nest_table import distinct_positions
from tilewright.hardware.machine_file import parse_machine
from tilewright.loops.problem import convolution


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
