"""The frame of reproductions: every number of a paper is listed, exhibits say what their figures are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.reproduce import REPRODUCTIONS
from tilewright.reproduce.base import (
    Basis,
    Exhibit,
    Figure,
    Printed,
    ReproducedPaper,
    printed_names,
    report_page,
    with_missing,
)

NUM_FIGURES_AND_TABLES = {
    "ago": (14, 0),
    "cosa": (11, 6),
    "graphturbo": (18, 5),
    "ios": (16, 3),
    "pcgc": (13, 6),
}
ROMAN = ("I", "II", "III", "IV", "V", "VI")


@pytest.mark.parametrize("paper", REPRODUCTIONS.names())
def test_every_number_of_a_paper_is_listed_once(paper: str) -> None:
    num_figures, num_tables = NUM_FIGURES_AND_TABLES[paper]
    numbers = ROMAN if paper == "cosa" else range(1, num_tables + 1)
    expected = {f"Figure {n}" for n in range(1, num_figures + 1)} | {f"Table {n}" for n in numbers}
    printed = REPRODUCTIONS.get(paper).printed
    assert {one.name for one in printed} == expected
    assert len(printed) == len(expected)
    assert all(one.title for one in printed)


@pytest.mark.parametrize("paper", REPRODUCTIONS.names())
def test_what_is_made_alone_is_printed_and_reproduced(paper: str) -> None:
    reproduction = REPRODUCTIONS.get(paper)
    made = {one.name for one in reproduction.printed if not one.why_not}
    assert made.issuperset(reproduction.exhibits)


PRINTED = (
    Printed("Figure 1", "a drawing", "It has no results."),
    Printed("Table 1", "times"),
    Printed("Figure 2", "counts"),
    Printed("Table 2", "energies"),
)


def made(name: str) -> Exhibit:
    return Exhibit(name, "made", "said", basis=Basis.COUNTED)


def test_what_was_not_made_is_there_with_its_reason() -> None:
    found = with_missing(PRINTED, [made("Choices"), made("Figure 2"), made("Table 1 here"), made("More")])
    assert [exhibit.name for exhibit in found] == [
        *("Choices", "Figure 1", "Table 1 here", "More", "Figure 2", "Table 2")
    ]
    missing = {e.name: e.said for e in found if e.basis is Basis.NOT_REPRODUCED}
    assert list(missing) == ["Figure 1", "Table 2"]
    assert missing["Figure 1"] == "It has no results."
    assert "share or time" in missing["Table 2"]


def test_of_exhibits_that_are_named_only_those_are_missing() -> None:
    found = with_missing(PRINTED, [made("Table 1")], ("Table 1", "Table 2"))
    assert [exhibit.name for exhibit in found] == ["Table 1", "Table 2"]


def test_a_name_may_stand_for_several_numbers() -> None:
    assert printed_names("Tables 3 and 4") == ("Table 3", "Table 4")
    assert printed_names("Table VI") == ("Table VI",)
    assert printed_names("Table 3, LLB") == ("Table 3",)


def test_text_page_and_json_say_what_figures_are() -> None:
    figures = (Figure("samples", 3.0, 2.0), Figure("seconds", 1.0, None, Basis.MEASURED))
    exhibits = with_missing(PRINTED, [Exhibit("Table 1", "times", "As told.", figures, basis=Basis.COUNTED)])
    result = ReproducedPaper("paper", Path("paper.html"), exhibits)
    text = str(result)
    page = report_page("Reproducing", exhibits, "Conditions.")
    for line in ("counted   samples", "measured  seconds"):
        assert line in text
    for exhibit in exhibits:
        assert exhibit.said in page
        assert exhibit.said in text or exhibit.basis is not Basis.NOT_REPRODUCED
    assert "Counted. As told." in page
    document = result.to_json()["exhibits"]
    assert {e["name"]: e["basis"] for e in document} == {
        "Figure 1": "not reproduced",
        "Table 1": "counted",
        "Figure 2": "not reproduced",
        "Table 2": "not reproduced",
    }
    assert [figure.get("basis") for e in document for figure in e["figures"]] == [None, "measured"]
