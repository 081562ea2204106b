"""What results have in common: JSON that follows from their fields, tables for people, a readable text.

A result is a frozen dataclass. Its JSON has a key for each field and for each property that `in_json`
makes; `about` says of a field what its name and type do not. The schema of the JSON (`cli/schemas`) is made
from the same fields, annotations and docstrings, so that neither is written by hand.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.records import dataclass
from tilewright.text.printable import html_text, printable

_UNIT_SYMBOLS = re.compile(r"_([pu])j(?=_|$)")


def about(
    text: str = "", *, key: str = "", hidden: bool = False, optional: bool = False, nullable: bool = False
) -> Mapping[str, Any]:
    """Metadata of a field: what it is, and how it is written in JSON.

    `key` is its key if that is not its name; a `hidden` one is not written, an `optional` one only where it
    is not None; what is `nullable` may be infinite or NaN, which JSON says as null.
    """
    return {"about": text, "key": key, "hidden": hidden, "optional": optional, "nullable": nullable}


if TYPE_CHECKING:
    in_json = property
else:

    class in_json(property):  # noqa: N801  # as property
        """A property that is a key of the JSON, its docstring the description there."""


@dataclass(frozen=True, slots=True)
class JsonEntry:
    """A key of a result's JSON and the attribute that it is the value of."""

    attribute: str
    key: str
    text: str = ""
    is_optional: bool = False
    is_nullable: bool = False
    getter: Callable[..., Any] | None = None


@functools.cache
def entries_of(kind: Any) -> tuple[JsonEntry, ...]:
    """What the JSON of a dataclass says, fields first."""
    found = []
    for field in dataclasses.fields(kind):
        facts = field.metadata
        if not facts.get("hidden") and not field.name.startswith("_"):
            found.append(
                JsonEntry(
                    field.name,
                    facts.get("key") or key_of(field.name),
                    facts.get("about") or facts.get("help", ""),
                    facts.get("optional", False),
                    facts.get("nullable", False),
                )
            )
    for name, member in inspect.getmembers_static(kind, lambda m: isinstance(m, in_json)):
        text = " ".join((member.fget.__doc__ or "").split())
        found.append(JsonEntry(name, key_of(name), text, getter=member.fget))
    return tuple(found)


def key_of(name: str) -> str:
    """The key of an attribute: its name, with symbols of units as the units have them.

    >>> key_of("edp_pj_cycles"), key_of("energy_uj"), key_of("num_jobs")
    ('edp_pJ_cycles', 'energy_uJ', 'num_jobs')
    """
    return _UNIT_SYMBOLS.sub(lambda match: f"_{match[1]}J", name)


def json_of(value: Any) -> Any:
    """A value as JSON's types. A dataclass is an object, or the list of its fields if it is `WrittenAsList`.

    >>> json_of({"a": (1, Path("b"))})
    {'a': [1, 'b']}
    """
    match value:
        case None | bool() | int() | float():
            return value
        case Enum() | Path():
            return str(value)
        case str():
            return str(value)
        case Mapping():
            return {str(k): json_of(v) for k, v in value.items()}
        case list() | tuple():
            return [json_of(v) for v in value]
        case WrittenAsList():
            return [json_of(getattr(value, f.name)) for f in dataclasses.fields(value)]  # type: ignore[arg-type]  # it is a dataclass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dict(_items(value))
    raise TypeError(f"a result holds a {type(value).__name__}, which JSON cannot say")


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    kind: Any = type(value)
    for entry in entries_of(kind):
        inner = getattr(value, entry.attribute)
        if inner is not None or not entry.is_optional:
            yield entry.key, json_of(inner)


class WrittenAsList:
    """A dataclass that JSON has as the list of its fields, as a loop is the pair of its dim and factor."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column heads (without heads, labels and texts).

    Columns in `right` are figures, aligned right; those in `less` may be left out where there is no room for
    all, in that order.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    title: str = ""
    right: tuple[int, ...] = ()
    less: tuple[int, ...] = ()

    def __str__(self) -> str:
        cells = [[printable(str(cell)) for cell in row] for row in self.rows]
        if any(self.heads):
            cells.insert(0, [printable(head) for head in self.heads])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if number in self.right else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        return "\n".join([printable(self.title), *lines] if self.title else lines)

    def html(self) -> str:
        """The table as a part of a page."""
        caption = f"<caption>{html_text(self.title)}</caption>" if self.title else ""
        heads = "".join(f"<th>{html_text(head)}</th>" for head in self.heads)
        rows = (
            f"<tr>{''.join(f'<td>{html_text(str(cell))}</td>' for cell in row)}</tr>" for row in self.rows
        )
        return f"<table>{caption}{f'<tr>{heads}</tr>' if any(self.heads) else ''}{''.join(rows)}</table>"


class Result:
    """Base of results. `tables` and `lines` are what people read; a verb prints them and nothing else."""

    __slots__ = ()

    def tables(self) -> Sequence[Table]:
        """The tables, in the order in which they are read."""
        return ()

    def lines(self) -> Sequence[str]:
        """What is said below the tables."""
        return ()

    def rows(self) -> Sequence[tuple[object, ...]]:
        """The rows of the first table."""
        tables = self.tables()
        return tables[0].rows if tables else ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = json_of(self)
        return found

    def __str__(self) -> str:
        return "\n".join([*map(str, self.tables()), *map(printable, self.lines())])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html_text(line)}</p>" for line in self.lines())
        return "".join(table.html() for table in self.tables()) + lines
