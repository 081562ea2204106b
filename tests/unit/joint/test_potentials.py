"""Potentials of a graph of two layers: which prove a bound, and what is said of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from tilewright.joint.base import Block, Pricer
from tilewright.joint.check import check_potentials

PRICES = {
    Block(layers=0b01, reads=0, resident=0, stores=0b01, keeps=0): 2.0,
    Block(layers=0b01, reads=0, resident=0, stores=0, keeps=0b01): 1.0,
    Block(layers=0b10, reads=0b01, resident=0, stores=0b10, keeps=0): 3.0,
    Block(layers=0b10, reads=0b01, resident=0b01, stores=0b10, keeps=0): 1.0,
    Block(layers=0b11, reads=0, resident=0, stores=0b10, keeps=0): 2.5,
}
"""The second layer reads the first, whose result is stored or kept. The cheapest plan keeps it: 2."""

BOUND = 2.0
GOOD = {(0, 0): 0.0, (0b01, 0): 2.0, (0, 0b01): 1.0, (0b01, 0b01): 1.0}
"""By what is stored and kept; 2 where the second layer's result is stored."""


@dataclass
class TwoLayers:
    """The part of a pricer that the check asks; `scale` multiplies all prices."""

    scale: float = 1.0
    num_layers: int = 2
    goal: int = 0b10

    def blocks(self, layers: int) -> list[Block]:
        return [block for block in PRICES if block.layers == layers]

    def price(self, block: Block) -> float:
        return PRICES[block] * self.scale


def rules(changes: dict[tuple[int, int], float], scale: float = 1.0) -> set[str]:
    potentials = GOOD | changes
    pricer = cast(Pricer, cast(Any, TwoLayers(scale)))

    def potential(stored: int, kept: int) -> float:
        return scale * potentials.get((stored, kept), BOUND)

    found = check_potentials(pricer, potential, scale * BOUND)
    return {violation.rule for violation in found}


@pytest.mark.parametrize(
    ("state", "value", "rule"),
    [
        ((0, 0), 0.5, "start"),
        ((0b11, 0), 1.5, "goal"),
        ((0b10, 0), 1.5, "goal"),
        ((0b01, 0), 2.5, "transition"),
        ((0, 0b01), 1.5, "transition"),
        ((0b01, 0), -2.0, "transition"),
        ((0, 0b01), -1.0, "transition"),
        ((0b10, 0), 2.5, "transition"),  # raised too much by the block that reads what is kept alone
    ],
)
def test_one_potential_that_is_wrong_breaks_one_rule(state: tuple[int, int], value: float, rule: str) -> None:
    assert rules({state: value}) == {rule}


@pytest.mark.parametrize("changes", [{}, {(0b01, 0): 0.5}, {(0, 0b01): 1.0}, {(0, 0): -0.0}])
def test_potentials_may_rise_by_less_than_a_block_costs(changes: dict[tuple[int, int], float]) -> None:
    """What is stored is not kept: a block that needs it kept cannot run, however cheap."""
    assert rules(changes) == set()


def test_sums_are_rounded_in_proportion() -> None:
    assert rules({(0b11, 0): 2.0 - 1e-9}, scale=1e3) == set()
    assert rules({(0b11, 0): 2.0 - 1e-8}, scale=1e3) == {"goal"}
    assert rules({(0b11, 0): 2.0 - 1e-6}) == {"goal"}
