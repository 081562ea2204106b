"""How verbs speak: tables for people, JSON for machines, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from tilewright import __version__

SCHEMA_VERSION = 1

JSON_OPTION = typer.Option(False, "--json", help="Print JSON instead of a table.")
QUIET_OPTION = typer.Option(False, "--quiet", "-q", help="No progress.")


def print_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print a result as one JSON document that says what it is and what wrote it."""
    head = {"kind": kind, "schema_version": SCHEMA_VERSION, "tilewright_version": __version__}
    typer.echo(json.dumps({**head, **document}, indent=2, default=_plain, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    return str(value)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    right: Sequence[int] = (),
) -> None:
    """Print rows under column heads; columns numbered in `right` are aligned right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(table)


def note(text: str) -> None:
    """A line for people, beside the result: standard error."""
    typer.echo(text, err=True)


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, silence elsewhere; gives `update(what, done=None, total=None)`."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=None)

        def update(what: str, done: int | None = None, total: int | None = None) -> None:
            bar.update(task, description=what, completed=done or 0, total=total or None)

        yield update


def format_bytes(size_bytes: float) -> str:
    """A size for people.

    >>> format_bytes(1536), format_bytes(10)
    ('1.5 KiB', '10 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


def format_ms(milliseconds: float) -> str:
    """A duration for people.

    >>> format_ms(0.0123), format_ms(12.3)
    ('12.3 µs', '12.3 ms')
    """
    if milliseconds < 1:
        return f"{milliseconds * 1000:.1f} µs"
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"


def format_shape(shape: Sequence[int]) -> str:
    """A shape as the --shapes flag writes it.

    >>> format_shape((1, 3, 224, 224))
    '1x3x224x224'
    """
    return "x".join(str(d) for d in shape) if shape else "scalar"
