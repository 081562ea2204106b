"""Tiles of random sums of products: they fit what is free, move everything at least once, and exact's move
the least."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tile_requests import request

from tilewright.errors import InfeasibleMapping
from tilewright.families import MAPPERS
from tilewright.hardware.presets import load_preset
from tilewright.targets.npu.ports import ports_of
from tilewright.targets.npu.tile_mapping import MappedTiles, MapperName, _solution, _View, tiler_of
from tilewright.targets.npu.tiles import TileRequest, Tiling

MACHINES = {name: load_preset(name) for name in ("stcp920", "ipu-mk2")}
MAPPERS_COMPARED: tuple[MapperName, ...] = ("exact", "cosa")
SIZES = st.sampled_from([1, 2, 3, 4, 6, 7, 8, 11, 16, 24])


@st.composite
def requests(draw: st.DrawFn) -> TileRequest:
    dims = {axis: draw(SIZES) for axis in ("N", "K", "C", "P", "Q")}
    window = draw(st.sampled_from([1, 3]))
    cores = draw(st.sampled_from([(1, 1, 1, 1), (4, 1, 1, 1), (1, 4, 1, 1), (2, 1, 2, 1)]))
    return request(
        dims | {"R": window, "S": window},
        local_bytes=draw(st.integers(1, 6000)),
        shared_bytes=draw(st.sampled_from([0, 64, 2000, 1 << 20])),
        homes="".join(draw(st.sampled_from("LSM")) for _ in range(3)),
        cores=cores,
        stride=draw(st.sampled_from([1, 2])),
    )


def seconds(tiling: Tiling, machine: str) -> tuple[float, float]:
    """What both ports take."""
    ports = ports_of(MACHINES[machine])
    passages = (*tiling.weights, *tiling.loads, *tiling.stores)
    moved = sum(p.moved_bytes for p in passages) / ports.local_bytes_per_s
    return sum(p.outer_bytes for p in passages) / ports.main_bytes_per_s, moved * (ports.shared is not None)


def tiled(asked: TileRequest, machine: str, mapper: MapperName) -> Tiling | None:
    try:
        tiling = tiler_of(MACHINES[machine], mapper).tile(asked)
    except InfeasibleMapping:
        return None
    operands = list(zip(asked.operands, (*tiling.weights, *tiling.loads, *tiling.stores), strict=True))
    assert sum(passage.held_bytes for _, passage in operands) <= asked.local_bytes
    for operand, passage in operands:
        if operand.is_local:
            assert passage.moved_bytes == passage.held_bytes == 0
            continue
        assert passage.moved_bytes >= operand.size_bytes
        assert (passage.outer_bytes >= operand.size_bytes) == operand.is_main
        assert passage.outer_bytes <= passage.moved_bytes
        assert 0 < passage.held_bytes <= operand.size_bytes * operand.num_copies
        if passage.is_kept:
            assert passage.held_bytes == operand.size_bytes * operand.num_copies
    assert tiling.bound_s <= max(seconds(tiling, machine)) * (1 + 1e-9)
    return tiling


@settings(max_examples=40, deadline=None)
@given(requests(), st.sampled_from(sorted(MACHINES)))
def test_tiles_fit_and_exact_moves_the_least(asked: TileRequest, machine: str) -> None:
    mappers: list[MapperName] = ["exact", "cosa", "paper"]
    answers = [tiled(asked, machine, mapper) for mapper in mappers]
    exact = answers[0]
    if exact is None:
        assert answers == [None] * len(answers)
        return
    for other in answers[1:]:
        assert other is not None
        assert sum(seconds(exact, machine)) <= sum(seconds(other, machine)) * 1.02


def test_rows_that_windows_leave_out_save_nothing_on_the_way_to_their_home() -> None:
    dims = {"N": 1, "K": 2, "C": 1, "P": 2, "Q": 2, "R": 1, "S": 1}
    asked = request(dims, local_bytes=4, shared_bytes=0, homes="MSL", stride=2)
    exact, cosa = (tiled(asked, "ipu-mk2", mapper) for mapper in MAPPERS_COMPARED)
    assert exact is not None
    assert cosa is not None
    assert sum(seconds(exact, "ipu-mk2")) <= sum(seconds(cosa, "ipu-mk2"))


@settings(max_examples=25, deadline=None)
@given(requests(), st.integers(2, 4))
def test_more_of_the_cores_buffers_never_moves_more(asked: TileRequest, times: int) -> None:
    small = tiled(asked, "stcp920", "exact")
    large = tiled(replace(asked, local_bytes=asked.local_bytes * times), "stcp920", "exact")
    if small is not None:
        assert large is not None
        assert sum(seconds(large, "stcp920")) <= sum(seconds(small, "stcp920")) * 1.02


def test_an_element_of_each_operand_is_mapped_as_larger_buffers_are() -> None:
    dims = {"N": 1, "K": 1, "C": 1, "P": 1, "Q": 2, "R": 3, "S": 3}
    asked = request(dims, local_bytes=4, shared_bytes=0, homes="LSL", cores=(1, 1, 1, 1), stride=1)
    small = tiled(asked, "stcp920", "exact")
    large = tiled(replace(asked, local_bytes=12), "stcp920", "exact")
    assert small is not None
    assert large is not None
    assert small.loops.startswith("exact")
    assert sum(seconds(large, "stcp920")) <= sum(seconds(small, "stcp920"))


@settings(max_examples=25, deadline=None)
@given(requests(), st.sampled_from(sorted(MACHINES)))
def test_what_holds_the_same_tiles_is_mapped_alike(asked: TileRequest, machine: str) -> None:
    ports, mapper = ports_of(MACHINES[machine]), MAPPERS.get("exact{pads=false, max_search_states=300000}")
    view = _View.of(asked, ports)
    if view is None:
        return
    rounded = MappedTiles(ports, (mapper,)).rounded(view)
    assert rounded.local_words <= view.local_words
    assert rounded.shared_words <= view.shared_words
    before, after = (_solution(mapper, v) for v in (view, rounded))
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert after.mapping == before.mapping
        assert after.quality == before.quality
