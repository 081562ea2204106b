"""How verbs speak: tables for people, JSON for machines, progress on standard error."""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import typer

from tilewright.progress import NOTICE
from tilewright.results import Result, Table
from tilewright.text.formatting import format_bytes, format_count, format_ms, format_shape
from tilewright.text.printable import bounded, json_text, printable, printable_lines
from tilewright.version import __version__

__all__ = [
    "MANNER",
    "SCHEMA_VERSION",
    "Manner",
    "Update",
    "as_argument",
    "format_bytes",
    "format_count",
    "format_ms",
    "format_shape",
    "hint",
    "listen_to_warnings",
    "note",
    "print_document",
    "print_json",
    "print_result",
    "print_table",
    "print_tables",
    "progress",
    "say",
    "show",
    "wants_json",
]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Manner:
    """How much the user wants to hear, and how."""

    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    json: bool = False


_DEFAULT = Manner()
MANNER: ContextVar[Manner] = ContextVar("MANNER", default=_DEFAULT)

Update = Callable[..., None]


def say(text: str, end: str = "\n") -> None:
    """Print a result; what a name in it could do to a terminal is shown instead.

    A reader that has gone away, as in `tilewright zoo list | head`, is no error.
    """
    _write(printable_lines(text) + end)


def _write(text: str) -> None:
    try:
        typer.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def print_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print a result as one JSON document that says what it is and what wrote it."""
    head = {"kind": kind, "schema_version": SCHEMA_VERSION, "tilewright_version": __version__}
    say(json_text(json.dumps({**head, **_plain(document)}, indent=2, allow_nan=False)))


def print_document(kind: str, *parts: Result) -> None:
    """Print results as one JSON document: of the types that `schemas.KINDS` names, in that order."""
    document: dict[str, Any] = {}
    for part in parts:
        document.update(part.to_json())
    print_json(kind, document)


class OnModel(Protocol):
    """A result on a model, compiled for a target, or the compiled model."""

    @property
    def model_sha256(self) -> str: ...
    @property
    def target(self) -> str: ...


def print_model_document(kind: str, of: OnModel | tuple[str, str], *parts: Result) -> None:
    """`print_document` on a model: which one, for what and on which machine come first."""
    from tilewright.cli.facts import ModelFacts  # its facts of this machine take a while to load

    facts = of if isinstance(of, tuple) else (of.model_sha256, of.target)
    print_document(kind, ModelFacts.of(*facts), *parts)


def wants_json() -> bool:
    """Whether one JSON document is asked for instead of tables."""
    return MANNER.get().json


def show(kind: str, result: Result, of: OnModel | tuple[str, str] | None = None) -> bool:
    """Print a result as is asked for; whether as people read it, who may be told more below."""
    if not wants_json():
        print_result(result)
    elif of is None:
        print_document(kind, result)
    else:
        print_model_document(kind, of, result)
    return not wants_json()


def _plain(value: Any) -> Any:
    """What JSON can say: numbers that are not finite become null, paths and enumerations text."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return str(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
        case Path():
            return str(value)
        case list() | tuple():
            return [_plain(v) for v in value]
    raise TypeError(f"a report holds a {type(value).__name__}, which JSON cannot say")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    right: Sequence[int] = (),
) -> None:
    """Print rows under column heads (no heads if all are empty); `right` is as in `Table`."""
    _print(Table(tuple(columns), tuple(map(tuple, rows)), title or "", tuple(right)))


def _print(table: Table) -> None:
    """Print a table as wide as the terminal, or, where there is none, as wide as it is."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from tilewright.cli.layout import BETWEEN, EDGES, layout, output_width

    width = output_width()
    shown = layout(table, width)
    has_heads = any(shown.heads)
    frame = RichTable(
        box=box.SIMPLE_HEAD if has_heads else box.SIMPLE,
        show_header=has_heads,
        header_style="bold",
        pad_edge=False,
    )
    for number, (head, columns) in enumerate(zip(shown.heads, shown.widths, strict=True)):
        is_figure = number in shown.right
        justify: Literal["left", "right"] = "right" if is_figure else "left"
        frame.add_column(Text(head), justify=justify, overflow="fold", width=columns)
    for row in shown.rows:
        frame.add_row(*map(Text, row))
    total = sum(shown.widths) + EDGES + BETWEEN * max(len(shown.widths) - 1, 0)
    console = Console(width=max(total, width or 0, 1))
    with console.capture() as capture:
        if table.title:
            console.print(Text(printable(table.title), style="bold"), soft_wrap=width is None)
        console.print(frame)
    lines = (line.rstrip() for line in capture.get().splitlines())
    # The table's own colours are escapes too: its cells are clean already.
    _write("\n".join(line for line in lines if line) + "\n")
    if shown.dropped:
        hint(f"not shown, for want of room: {', '.join(shown.dropped)}; a wider terminal or a pipe has all.")


def print_result(result: Result) -> None:
    """Print what a result says to people: its tables, and what stands below them."""
    print_tables(result.tables())
    for line in result.lines():
        say(line)


def print_tables(tables: Sequence[Table]) -> None:
    """Print tables, with an empty line between two."""
    for number, table in enumerate(tables):
        if number:
            say("")
        _print(table)


def note(text: str) -> None:
    """A line for people, beside the result: standard error, also when quiet.

    Where that cannot be written, as on a full disk, the exit code still says how it ended.
    """
    try:
        typer.echo(printable_lines(text), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def hint(text: str) -> None:
    """What to try next, or to know: standard error, not when quiet."""
    if not MANNER.get().quiet:
        note(text)


def as_argument(path: Path | str) -> str:
    """A path as it can be typed after a verb, for what is suggested.

    >>> as_argument("a model.onnx"), as_argument("-m.onnx")
    ("'a model.onnx'", './-m.onnx')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def listen_to_warnings() -> None:
    """Let warnings of the library reach standard error, one line each; less if quiet, more if verbose.

    A terminal also shows what takes long and happens once.
    """
    manner = MANNER.get()
    logger = logging.getLogger("tilewright")
    for handler in [h for h in logger.handlers if isinstance(h, _Lines)]:
        logger.removeHandler(handler)
    logger.addHandler(_Lines())
    logger.propagate = False
    usual = NOTICE if sys.stderr.isatty() else logging.WARNING
    logger.setLevel(logging.ERROR if manner.quiet else logging.DEBUG if manner.verbose else usual)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level = "note" if record.levelno == NOTICE else record.levelname.lower()
        note(f"tilewright: {level}: {bounded(record.getMessage())}")


@contextmanager
def progress(what: str) -> Iterator[Update]:
    """A bar on a terminal, lines if verbose, else silence; gives `update(what, done=None, total=None)`.

    What libraries print meanwhile, as Ray does of a process that died, goes to standard error: standard
    output is for results, of which a program may read one JSON document.
    """
    with redirect_stdout(sys.stderr), _shown_progress(what) as update:
        yield update


@contextmanager
def _shown_progress(what: str) -> Iterator[Update]:
    manner = MANNER.get()
    if manner.quiet or not sys.stderr.isatty():
        yield _spoken() if manner.verbose and not manner.quiet else _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[pace]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(printable(what), total=None, pace="")
        pace = Pace()

        def update(what: str, done: int | None = None, total: int | None = None) -> None:
            known = total if total is not None and total > 1 else None
            said = pace.after(done or 0, known)
            bar.update(task, description=printable(what), completed=done or 0, total=known, pace=said)

        yield update


class Pace:
    """How much of some work is done, and how long the rest takes at the same pace.

    >>> times = iter([0.0, 30.0])
    >>> pace = Pace(lambda: next(times))
    >>> pace.after(0, 4), pace.after(1, 4)
    ('0 %', '25 %, 1:30 left')
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._total: int | None = None
        self._share = self._first_share = self._start_s = 0.0

    def after(self, done: int, total: int | None) -> str:
        """What is said when so much is done; nothing where the total is unknown."""
        if total is None:
            self._total = None
            return ""
        share, now_s = min(done / total, 1.0), self._clock()
        if total != self._total or share < self._share:  # other work
            self._total, self._first_share, self._start_s = total, share, now_s
        self._share = share
        gained = share - self._first_share
        if gained <= 0:
            return f"{100 * share:.0f} %"
        left_s = round((now_s - self._start_s) * (1 - share) / gained)
        return f"{100 * share:.0f} %, {left_s // 60}:{left_s % 60:02d} left"


def _silent(what: str, done: int | None = None, total: int | None = None) -> None:
    pass


def _spoken() -> Update:
    """Each new activity is one line."""
    last = ""

    def update(what: str, done: int | None = None, total: int | None = None) -> None:
        nonlocal last
        if what != last:
            note(f"tilewright: {what}")
            last = what

    return update
