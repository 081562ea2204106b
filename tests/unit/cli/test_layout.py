"""Tables fit the width there is, without breaking a word or a number."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cli.layout import BETWEEN, EDGES, layout
from tilewright.cli.output import print_tables
from tilewright.results import Table

NAMES = [f"/model/layers.{n}/self_attn/q_proj/MatMul" for n in range(3)]
TABLE = Table(
    ("node", "operator", "time", "share", "bytes", "why"),
    tuple(
        (
            name,
            "MatMul",
            f"{12_345_678 + n:,} ns",
            f"{n} %",
            f"{n}.5 KiB",
            "a kernel that reads its weights once",
        )
        for n, name in enumerate(NAMES)
    ),
    title="kernels of a network",
    right=(2, 3, 4),
    less=(4, 3),
)


def printed(table: Table, width: int | None, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "" if width is None else str(width))
        print_tables([table])
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_table_fits_the_width_and_keeps_words_and_numbers_whole(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = printed(TABLE, width, capsys)
    assert max(map(len, out.splitlines())) <= width
    words = set(re.findall(r"\S+", out))
    for name in NAMES:
        assert name in words
    assert {"12,345,678", "MatMul", "weights"} <= words


def test_columns_that_matter_least_go_first_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(TABLE, 108, capsys)
    assert "bytes" not in out
    assert "share" in out
    assert err == "not shown, for want of room: bytes; a wider terminal or a pipe has all.\n"
    out, err = printed(TABLE, 100, capsys)
    assert "share" not in out
    assert "bytes, share;" in err


def test_in_a_pipe_a_table_is_as_wide_as_what_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(TABLE, None, capsys)
    title, head, _, *rows = out.splitlines()
    assert (title, err) == ("kernels of a network", "")
    assert head.split() == [*TABLE.heads]
    assert len(rows) == len(TABLE.rows)


def test_a_word_is_shortened_in_its_middle_only_where_nothing_else_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = printed(TABLE, 50, capsys)
    assert max(map(len, out.splitlines())) <= 50
    assert re.search(r"/mod\S*…\S*Mul", out)
    assert "12,345,680 ns" in out


@given(
    rows=st.lists(
        st.tuples(st.text("ab c", max_size=40), st.integers(0, 10**9), st.text("xyz /", max_size=60)),
        max_size=5,
    ),
    width=st.one_of(st.none(), st.integers(1, 130)),
)
@settings(max_examples=60, deadline=None)
def test_layouts_fit_or_say_all_they_can(rows: list[tuple[str, int, str]], width: int | None) -> None:
    table = Table(("text", "number", "more of it"), tuple(rows), right=(1,), less=(2,))
    found = layout(table, width)
    assert len(found.heads) + len(found.dropped) == 3
    for row, given_row in zip(found.rows, rows, strict=True):
        assert row[1] == str(given_row[1])
    total = sum(found.widths) + EDGES + BETWEEN * (len(found.widths) - 1)
    assert width is None or total <= width or max(found.widths[0], found.widths[1]) <= 10
