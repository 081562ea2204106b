"""What a stage costs that runs alone: its mapping, and what its other operators read from outside."""

from __future__ import annotations

from math import ceil

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.cost.options import TIMELOOP
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Node
from tilewright.mapping.chains.price import ChainCost
from tilewright.mapping.chains.runs import stages_of
from tilewright.mapping.chains.separate import cost_of_stage, map_stage

WORDS = 4 * 4 * 4


def stage(adds: bool) -> tuple[Node, ...]:
    """A product of 64 words and 16, with or without 64 that are added to it."""
    build = GraphBuilder()
    y = build.conv(build.input(1, 4, 4, 4), 4)
    if adds:
        y = build.op("Add", y, build.input(*y.shape))
    (found,) = stages_of(list(build.finish(y).nodes))
    return found


def costs(machine: Machine) -> list[ChainCost]:
    """Without and with an addition, under one mapping of the product."""
    mappings = map_stage(stage(False), machine, "energy", TIMELOOP, 60.0)
    assert mappings is not None
    return [cost_of_stage(stage(adds), machine, mappings) for adds in (False, True)]


@pytest.mark.parametrize("name", ["eyeriss", "simba-cosa-repo"])
def test_words_that_are_added_are_read_besides(name: str) -> None:
    machine = load_preset(name)
    alone, added = costs(machine)
    outermost = machine.outermost
    assert added.written_words == alone.written_words == WORDS
    assert added.read_words == alone.read_words + WORDS
    read_pj = WORDS * outermost.read_access_pj / outermost.words_per_access
    assert added.energy_pj == pytest.approx(alone.energy_pj + read_pj)


def test_words_that_are_added_take_the_outermost_levels_time() -> None:
    machine = load_preset("simba-cosa-repo")
    rates = {"read_bytes_per_cycle": 0.125, "write_bytes_per_cycle": None}
    outermost = machine.outermost.model_copy(update=rates)
    machine = machine.model_copy(update={"levels": (*machine.levels[:-1], outermost)})
    word_bytes = outermost.word_bits / 8
    for adds, found in enumerate(costs(machine)):
        assert found.read_words == (1 + adds) * WORDS + 16
        assert found.cycles == ceil(found.read_words * word_bytes / 0.125)
