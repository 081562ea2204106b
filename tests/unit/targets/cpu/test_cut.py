"""The cut into chunks: one model for loops and products, of the work alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.hardware.rates import PROFILE
from tilewright.targets.cpu.cut import MAX_CHUNKS, CutWork, choose_num_chunks, cut_cycles, rank_cuts
from tilewright.targets.cpu.isa import CacheSizes, isa_by_name

# A core of any machine: sizes of works below are chosen by its caches and rates.
ISA = replace(isa_by_name("avx512"), caches=CacheSizes(), rates=PROFILE)
LARGE = CutWork(64, 64, 1 << 40, 1e9)


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 34))
def test_chunks_are_no_more_than_pieces_or_threads_can_use(extent: int, operations: int) -> None:
    assert 1 <= choose_num_chunks(extent, operations) <= min(max(1, extent), MAX_CHUNKS)


@pytest.mark.parametrize("operations", [100_000, 1_000_000, 1 << 30])
def test_alike_pieces_become_as_many_chunks_as_usual_threads_share_evenly(operations: int) -> None:
    assert choose_num_chunks(1 << 20, operations) % 4 == 0


def test_equal_chunks_that_no_thread_waits_for_cost_least() -> None:
    waiting = {n: cut_cycles(1e7, n) for n in range(1, MAX_CHUNKS + 1)}
    assert min(waiting, key=waiting.__getitem__) == 16
    assert waiting[4] < min(waiting[n] for n in (1, 2, 3, 5, 6, 7))


def test_small_work_is_cut_less_as_a_chunk_takes_time_to_begin() -> None:
    numbers = [choose_num_chunks(1 << 20, operations) for operations in (1 << n for n in range(10, 34))]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert numbers[-1] == MAX_CHUNKS


@pytest.mark.parametrize(("large", "kept"), [("a_bytes", "num_panel_parts"), ("b_bytes", "num_row_parts")])
def test_an_operand_that_leaves_the_private_cache_is_read_by_few_parts(large: str, kept: str) -> None:
    best = rank_cuts(replace(LARGE, **{large: 64 << 20}), ISA)[0]
    assert getattr(best, kept) == 1
    assert best.num_chunks == MAX_CHUNKS


def test_an_operand_that_stays_there_costs_threads_not_parts() -> None:
    stays, leaves = (replace(LARGE, b_bytes=size) for size in (ISA.caches.l2_bytes // 2, 1 << 30))
    parts = {cut.num_row_parts for cut in rank_cuts(stays, ISA)[:3]}
    assert max(parts) > 1
    assert rank_cuts(leaves, ISA)[0].num_row_parts == 1


def test_rows_stay_with_the_threads_that_wrote_them() -> None:
    apart = CutWork(14, 32, 50_000_000, 1.6e6, b_bytes=1 << 20)
    assert rank_cuts(apart, ISA)[0].num_row_parts == 1
    for shared in ({"a_bytes": 1 << 20}, {"c_bytes": 2 << 20}):
        assert rank_cuts(replace(apart, **shared), ISA)[0].num_row_parts > 1


def test_unequal_chunks_of_neighbours_make_a_thread_wait() -> None:
    """Of five rows two threads have two and three; four panels they share evenly."""
    assert rank_cuts(CutWork(5, 4, 1 << 30, 1e8), ISA)[0].num_panel_parts == 4
