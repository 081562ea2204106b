"""Tiles of a step: one way through it where that fits, else a mapper's, never faster than what is proven."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import pytest
from tests.support.tile_requests import request

from tilewright.errors import InfeasibleMapping
from tilewright.families import MAPPERS
from tilewright.hardware.presets import load_preset
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.planning import Budget, Infeasible
from tilewright.targets.npu.ports import ports_of
from tilewright.targets.npu.tile_mapping import MappedTiles, MapperName, tiler_of
from tilewright.targets.npu.tiles import MAX_TILES, NUM_TILES

MACHINE = load_preset("stcp920")
LAYER = {"N": 1, "K": 64, "C": 64, "P": 16, "Q": 16, "R": 3, "S": 3}


def test_what_fits_moves_once_in_the_usual_number_of_tiles() -> None:
    asked = request(LAYER, local_bytes=1 << 22, shared_bytes=1 << 22)
    tiling = tiler_of(MACHINE).tile(asked)
    assert tiling.num_tiles == NUM_TILES
    assert [p.moved_bytes for p in (*tiling.weights, *tiling.loads, *tiling.stores)] == [
        x.size_bytes for x in asked.operands
    ]


def test_weights_that_do_not_fit_pass_along_channels() -> None:
    asked = request(LAYER, local_bytes=40_000, homes="MLL", cores=(1, 1, 4, 1))
    tiling = tiler_of(MACHINE).tile(asked)
    (weights,) = tiling.weights
    assert tiling.axis == 1
    assert not weights.is_kept
    assert weights.moved_bytes == asked.weights[0].size_bytes
    assert 4 * weights.held_bytes <= asked.local_bytes


@pytest.mark.parametrize("mapper", get_args(MapperName))
def test_smaller_buffers_take_more_time_and_never_less_than_is_proven(mapper: MapperName) -> None:
    ports, tiler = ports_of(MACHINE), tiler_of(MACHINE, mapper)
    taken = []
    for local_bytes in (1 << 22, 1 << 15, 1 << 12, 1 << 9):
        tiling = tiler.tile(request(LAYER, local_bytes=local_bytes))
        passages = (*tiling.weights, *tiling.loads, *tiling.stores)
        outer_s = sum(p.outer_bytes for p in passages) / ports.main_bytes_per_s
        inner_s = sum(p.moved_bytes for p in passages) / ports.local_bytes_per_s
        assert max(outer_s, inner_s) >= tiling.bound_s
        assert tiling.num_tiles <= MAX_TILES
        assert sum(p.held_bytes for p in passages) <= local_bytes
        taken.append(outer_s)
    assert taken == sorted(taken)
    assert taken[-1] > taken[0]


def test_a_buffer_too_small_for_an_element_of_each_operand_is_refused_in_a_line() -> None:
    with pytest.raises(InfeasibleMapping, match=r"^layer conv on \S+: level L1: one .* 6 bytes .*\.$"):
        tiler_of(MACHINE).tile(request(LAYER, local_bytes=5))


@dataclass(eq=False)
class Counting:
    """A mapper that counts what it is asked."""

    mapper: Mapper
    num_asked: int = 0

    @property
    def name(self) -> str:
        return self.mapper.name

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        self.num_asked += 1
        return self.mapper.solve(problem, budget)


def test_capacities_that_hold_the_same_tiles_are_mapped_once() -> None:
    asked = request({"K": 64, "C": 64, "P": 8, "Q": 8}, local_bytes=3000, shared_bytes=1 << 20)
    counting = Counting(MAPPERS.get("exact{pads=false}"))
    tiles = MappedTiles(ports_of(MACHINE), (counting,))
    tilings = {n: tiles.tiling(replace(asked, local_bytes=n)) for n in range(3000, 3400, 16)}
    assert 1 < counting.num_asked < len(tilings) / 2
    for free_bytes in (3000, 3160, 3320):
        alone = MappedTiles(ports_of(MACHINE), (MAPPERS.get("exact{pads=false}"),))
        assert alone.tiling(replace(asked, local_bytes=free_bytes)) == tilings[free_bytes]
