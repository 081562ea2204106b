"""How results look: JSON says everything, also what is not a number; tables keep what they are given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli.output import (
    MANNER,
    Manner,
    Pace,
    format_bytes,
    hint,
    note,
    print_json,
    print_table,
    progress,
)


def test_json_says_what_it_is_and_turns_values_without_a_number_into_null(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = {"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x/y"), "d": (1, None, True)}
    print_json("zoo", values)
    found = json.loads(capsys.readouterr().out)
    assert found.pop("kind") == "zoo"
    assert {"schema_version", "tilewright_version"} <= found.keys()
    assert {k: found[k] for k in values} == {"a": None, "b": [None, 1.5], "c": "x/y", "d": [1, None, True]}


def test_json_refuses_what_nobody_could_read_back() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        print_json("zoo", {"a": np.zeros(3)})


def test_a_document_cannot_hide_another_key_of_the_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("zoo", {"networks": []})
    assert list(json.loads(capsys.readouterr().out))[:3] == ["kind", "schema_version", "tilewright_version"]


def test_a_table_shows_every_cell_without_reading_markup_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [("[bold]x[/bold]", 1), ("y" * 300, 2)])
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert out.count("y") == 300, "long cells are folded, not cut"


def test_hints_are_silent_when_quiet_but_notes_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    token = MANNER.set(Manner(quiet=True))
    try:
        hint("try this")
        note("look here")
    finally:
        MANNER.reset(token)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "look here\n")


@pytest.mark.parametrize(("manner", "said"), [(Manner(), ""), (Manner(verbose=True), "tilewright: one\n")])
def test_progress_off_a_terminal_is_lines_only_if_asked(
    manner: Manner, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    token = MANNER.set(manner)
    try:
        with progress("zero") as update:
            update("one", 1, 2)
            update("one", 2, 2)
    finally:
        MANNER.reset(token)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB")])
def test_sizes_change_unit_at_each_power(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert format_bytes(size << 20) != text or size == 0


def test_a_figure_stands_on_one_line_however_wide_the_table_is(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [f"{7_733_290_169_528 + n:,}" for n in range(9)]
    print_table(("layer", *"abcdefghi"), [("x" * 60, *figures)], right=tuple(range(1, 10)))
    out = capsys.readouterr().out
    assert all(figure in out for figure in figures)
    assert out.count("x") == 60


@pytest.mark.parametrize("manner", [Manner(quiet=True), Manner(json=True), Manner(verbose=True)])
def test_what_others_print_meanwhile_is_no_part_of_a_result(
    capsys: pytest.CaptureFixture[str], manner: Manner
) -> None:
    token = MANNER.set(manner)
    try:
        with progress("planning"):
            print("a process of the cluster died")
        print_json("zoo", {"a": 1})
    finally:
        MANNER.reset(token)
    said = capsys.readouterr()
    assert json.loads(said.out)["a"] == 1
    assert "a process of the cluster died" in said.err


def test_progress_says_its_share_and_the_time_that_is_left() -> None:
    now = iter([0.0, 10.0, 15.0, 20.0, 26.0])
    pace = Pace(lambda: next(now))
    assert pace.after(2, 10) == "20 %"
    assert pace.after(4, 10) == "40 %, 0:30 left"
    assert pace.after(5, 10) == "50 %, 0:25 left"
    assert pace.after(0, 3) == "0 %", "other work begins anew"
    assert pace.after(1, 3) == "33 %, 0:12 left"
    assert pace.after(1, None) == ""
