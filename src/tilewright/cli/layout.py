"""How wide the columns of a table are: within the terminal, and no word or number on two lines.

Where there is room every cell has a line. Else texts are wrapped between words, then columns go that matter
least, as the table says. Words are only shortened, in their middle, where nothing else is left to do.
Without a width, as in a pipe, a table is as wide as what it holds, but for long lists of words.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tilewright.results import Table
from tilewright.text.printable import printable

EDGES, BETWEEN = 2, 3
"""What the frame takes: beside the table, and between two columns."""
_READABLE = 24  # a column of sentences is not made narrower before others are dropped
_SHORTEST = 8  # what is left of a word that is shortened
_WIDEST = 100  # of a column of texts where nothing limits a table
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a table is shown: heads and cells of its columns, how wide they are, and heads left out."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    right: tuple[int, ...]
    dropped: tuple[str, ...] = ()


def output_width() -> int | None:
    """Columns that standard output has: of the terminal, or as COLUMNS says; None where nothing limits it."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdigit() and int(stated):
        return int(stated)
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def layout(table: Table, width: int | None) -> Layout:
    """A table for a width, or as wide as it is."""
    cells = [[printable(str(cell)) for cell in row] for row in table.rows]
    columns = [
        _Column(printable(head), [row[i] for row in cells], i, is_figure=i in table.right)
        for i, head in enumerate(table.heads)
    ]
    droppable = [columns[i] for i in table.less]
    dropped: list[str] = []
    widths = _widths(columns, width, _Column.readable)
    while widths is None and droppable:
        column = droppable.pop(0)
        columns.remove(column)
        dropped.append(column.head)
        widths = _widths(columns, width, _Column.readable)
    if widths is None:
        widths = _widths(columns, width, _Column.least)
    if widths is None:
        assert width is not None
        widths = _shortened(columns, width)
    return Layout(
        tuple(column.head for column in columns),
        tuple(zip(*(column.cells for column in columns), strict=True)),
        tuple(widths),
        tuple(place for place, column in enumerate(columns) if column.is_figure),
        tuple(dropped),
    )


class _Column:
    """A column: figures stand on one line, texts may be wrapped between words; heads are texts."""

    def __init__(self, head: str, cells: list[str], index: int, *, is_figure: bool) -> None:
        self.head, self.cells, self.index, self.is_figure = head, cells, index, is_figure

    def natural(self) -> int:
        """The width at which nothing is wrapped."""
        return max(map(cell_len, (self.head, *self.cells)))

    def least(self) -> int:
        """The width at which no word is broken, and no figure."""
        texts = (self.head,) if self.is_figure else (self.head, *self.cells)
        words = (cell_len(word) for text in texts for word in text.split())
        figures = map(cell_len, self.cells) if self.is_figure else ()
        return max((*words, *figures), default=0)

    def readable(self) -> int:
        """The width at which texts are still easy to read."""
        longest = 0 if self.is_figure else max(map(cell_len, self.cells), default=0)
        return max(self.least(), min(longest, _READABLE))

    def shorten(self, width: int) -> None:
        """Take the middle out of words that are longer."""
        self.cells = [" ".join(_short(word, width) for word in cell.split(" ")) for cell in self.cells]


def _short(word: str, width: int) -> str:
    if cell_len(word) <= width:
        return word
    kept = width - cell_len(_ELLIPSIS)
    return f"{word[: (kept + 1) // 2]}{_ELLIPSIS}{word[len(word) - kept // 2 :]}"


def _widths(
    columns: Sequence[_Column], width: int | None, lowest: Callable[[_Column], int]
) -> list[int] | None:
    """Widths between the lowest and the natural ones; None where even the lowest are too wide."""
    natural = [column.natural() for column in columns]
    if width is None:
        return [
            min(wide, max(column.least(), _WIDEST)) for wide, column in zip(natural, columns, strict=True)
        ]
    room = width - EDGES - BETWEEN * (len(columns) - 1)
    if sum(natural) <= room:
        return natural
    found = [lowest(column) for column in columns]
    left = room - sum(found)
    if left < 0:
        return None
    # Who needs little gets it; the others share what is left.
    by_need = sorted(range(len(columns)), key=lambda i: natural[i] - found[i])
    for rank, i in enumerate(by_need):
        more = min(natural[i] - found[i], left // (len(by_need) - rank))
        found[i] += more
        left -= more
    return found


def _shortened(columns: Sequence[_Column], width: int) -> list[int]:
    """Widths with words shortened, the longest first, as far as the table still says something."""
    found = [column.least() for column in columns]
    excess = sum(found) + EDGES + BETWEEN * (len(columns) - 1) - width
    texts = [i for i, column in enumerate(columns) if not column.is_figure]
    while excess > 0:
        widest = max(texts, key=lambda i: found[i], default=None)
        if widest is None or found[widest] <= _SHORTEST:
            break
        found[widest] -= 1
        excess -= 1
    for i in texts:
        columns[i].shorten(found[i])
    return found
