"""PCGC's tables in its units, and what they say of each number, from outcomes that are made up."""

from __future__ import annotations

from typing import get_args

import pytest

from tilewright.partition.pcgc.start import StartName
from tilewright.reproduce.base import Exhibit
from tilewright.reproduce.pcgc import gains, tables
from tilewright.reproduce.pcgc.paper import BOARDS, FRAMES_PER_S, GOPS_PER_W, NANO, ZCU102
from tilewright.reproduce.pcgc.reproduction import Pcgc, _job
from tilewright.reproduce.pcgc.runs import (
    BEST,
    BEST_TIME,
    GRAPHTURBO,
    PCGC,
    RELAY,
    STATIC,
    WITHIN,
    Checked,
    Cut,
    PcgcOutcome,
    Planned,
)

START_SAVES = {"rules-alone": 0.9}


def planned(time_ms: float, energy_mj: float) -> Planned:
    return Planned(1, time_ms, energy_mj)


def made_up(num_gop: float = 40.0, least_ms: float = 13.0) -> PcgcOutcome:
    plans = {
        RELAY: planned(20.0, 100.0),
        STATIC: planned(18.0, 80.0),
        PCGC: planned(17.0, 78.0),
        GRAPHTURBO: planned(16.0, 60.0),
        BEST: planned(15.0, 50.0),
        BEST_TIME: planned(14.0, 52.0),
        WITHIN: planned(14.7, 51.0),
    }
    cut = {
        start: Cut(
            planned(18.0, 80.0),
            planned(17.0, 80.0 * START_SAVES.get(start, 1.0)),
            planned(16.0, 80.0 * START_SAVES.get(start, 1.0)),
        )
        for start in get_args(StartName)
    }
    cuts = {"energy": cut, "latency": cut}
    return PcgcOutcome(plans, cuts, Checked(3, 2, 1), ((14.0, 52.0),), num_gop, least_ms)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, PcgcOutcome]]:
    return {board.name: {row.name: made_up() for row in board.rows} for board in BOARDS}


@pytest.fixture(scope="module")
def made(found: dict[str, dict[str, PcgcOutcome]]) -> dict[str, Exhibit]:
    return {exhibit.name: exhibit for exhibit in (*tables.tables(found), *gains.exhibits(found))}


def cells(exhibit: Exhibit, row: int) -> dict[str, str]:
    return dict(zip(exhibit.heads, exhibit.rows[row], strict=True))


def test_networks_run_at_the_papers_sizes() -> None:
    sizes = {(board.name, row.name): _job(board, row) for board in BOARDS for row in board.rows}
    assert sizes.pop((ZCU102.name, "YOLOv5, 640x512")).image == (640, 512)
    assert {job.image for job in sizes.values()} == {(1024, 1024)}
    assert sizes[NANO.name, "YOLOv4-tiny (batch 4)"].batch == 4


def test_tables_3_to_6_have_every_number_of_the_paper_and_ours_below(made: dict[str, Exhibit]) -> None:
    for board, numbers in ((BOARDS[1], (3, 4)), (BOARDS[2], (5, 6))):
        for number, of in zip(numbers, ("times_ms", "powers_w"), strict=True):
            exhibit = made[f"Table {number}"]
            assert len(exhibit.rows) == 2 * len(board.rows)
            for place, row in enumerate(board.rows):
                paper, ours = cells(exhibit, 2 * place), cells(exhibit, 2 * place + 1)
                assert [float(paper[p]) for p in board.planners] == list(getattr(row, of))
                assert {ours[p] for p in board.planners if p not in ("TVM", "PCGC")} == {"not reproduced"}
                value = 78.0 / 17.0 if of == "powers_w" else 17.0 / row.batch
                assert float(ours["PCGC"]) == pytest.approx(value, rel=1e-3)
                assert paper["GraphTurbo, whole"] == "-"


def test_a_time_of_the_paper_below_the_least_of_the_machine_is_named(made: dict[str, Exhibit]) -> None:
    assert "Resnet-50 (12.1 ms, at least 13)" in made["Table 3"].said
    assert "YOLOv5s (" not in made["Table 3"].said
    assert "cannot take as little" not in made["Table 5"].said


def test_tables_1_and_2_are_in_frames_per_s_and_operations_per_joule(made: dict[str, Exhibit]) -> None:
    paper, ours = cells(made["Table 1"], 0), cells(made["Table 1"], 1)
    assert (paper["FPS"], paper["GOPS/W"], paper["W"]) == ("36", "128.1", "3.15")
    assert float(ours["FPS"]) == pytest.approx(1e3 / 17.0, rel=1e-3)
    assert float(ours["GOPS/W"]) == pytest.approx(40.0 / 0.078, rel=1e-3)
    table = made["Table 2"]
    by_row = {row[0]: row for row in table.rows if row[0]}
    assert [float(n) for n in by_row["No. 2, FPS"][2:5]] == list(FRAMES_PER_S[1])
    assert [float(n) for n in by_row["No. 1, GOPS/W"][2:5]] == list(GOPS_PER_W)
    # 128.1 GOPS/W at 3.15 W and 36 frames per second.
    assert float(by_row["No. 1, GOP of an image"][4]) == pytest.approx(128.1 * 3.15 / 36, rel=1e-2)


def test_factors_of_a_gain_multiply_to_the_whole(made: dict[str, Exhibit]) -> None:
    for exhibit in (made["Sources of the gain in energy"], made["Sources of the gain in time"]):
        for row in exhibit.rows:
            *factors, together = map(float, row[3:8])
            product = 1.0
            for factor in factors:
                product *= factor
            assert product == pytest.approx(together, abs=1e-3)


def test_pairs_that_algorithm_2_improves_are_counted_by_start(made: dict[str, Exhibit]) -> None:
    exhibit = made["Re-cutting for energy"]
    figures = {figure.what: figure.ours for figure in exhibit.figures}
    assert len(exhibit.rows) == 15 * len(get_args(StartName))
    assert figures["rules-alone: pairs that Algorithm 2 improves, of 15"] == 15
    assert figures["static-fusion: pairs that Algorithm 2 improves, of 15"] == 0
    assert figures["rules-alone: most saved, %"] == pytest.approx(10)
    assert figures["clusters that may be cut, of these dearer by Algorithm 2"] == 15


def test_the_reproduction_lists_every_table_and_figure_of_the_paper() -> None:
    names = {printed.name for printed in Pcgc.printed}
    assert names == {*(f"Figure {n}" for n in range(1, 14)), *(f"Table {n}" for n in range(1, 7))}
