"""Results: their JSON and their text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from tilewright.results import Result, Table, WrittenAsList, about, in_json, json_of


class _Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class _Pair(WrittenAsList):
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class _Example(Result):
    """An example."""

    energy_pj: float
    pairs: tuple[_Pair, ...]
    path: Path
    colour: _Colour
    num_reads: int = field(metadata=about("Words.", key="reads"))
    secret: object = field(metadata=about(hidden=True))
    extra: int | None = field(default=None, metadata=about(optional=True))

    @in_json
    def twice(self) -> int:
        """Reads and reads again."""
        return 2 * self.num_reads

    @property
    def thrice(self) -> int:
        """Not in the JSON."""
        return 3 * self.num_reads

    def tables(self) -> tuple[Table, ...]:
        return (Table(("name", "count"), (("a<b", 1), ("c\x1b", 22)), "Pairs", (1,)),)

    def lines(self) -> tuple[str, ...]:
        return ("in all 23",)


EXAMPLE = _Example(1.5, (_Pair("a", 1),), Path("x/y"), _Colour.RED, 4, object())


def test_json_follows_from_fields_and_marked_properties() -> None:
    assert EXAMPLE.to_json() == {
        "energy_pJ": 1.5,
        "pairs": [["a", 1]],
        "path": "x/y",
        "colour": "red",
        "reads": 4,
        "twice": 8,
    }


def test_what_json_cannot_say_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        json_of({"a": object()})


def test_people_read_aligned_columns_and_no_control_characters() -> None:
    assert str(EXAMPLE) == "Pairs\nname   count\na<b        1\nc\\x1b     22\nin all 23"
    assert "<td>a&lt;b</td>" in EXAMPLE._repr_html_()
    assert EXAMPLE.rows() == (("a<b", 1), ("c\x1b", 22))
