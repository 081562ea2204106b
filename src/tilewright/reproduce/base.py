"""What a reproduction consists of: exhibits, each with our figures beside the paper's and a few words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from tilewright.errors import UsageError
from tilewright.report.figure import drawn, heading, html_table, note, page
from tilewright.reproduce.kept import Kept
from tilewright.results import Result, Table, about

Update = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done and how many there are."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a paper and ours; None where there is none."""

    what: str
    ours: float | None
    paper: float | None


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One table or figure: its name in the paper, a picture as HTML, figures, the data, what to say."""

    name: str
    title: str
    said: str = field(metadata=about("What was done, and what does not reproduce and why."))
    figures: tuple[Figure, ...] = ()
    picture: str = field(default="", metadata=about(hidden=True))
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ReproducedPaper(Result):
    """A paper's tables and figures, ours beside the paper's."""

    paper: str
    file: Path
    exhibits: tuple[Exhibit, ...]

    def tables(self) -> Sequence[Table]:
        """Our figures beside the paper's."""
        return (Table(_HEADS, tuple(_rows(self.exhibits)), right=(2, 3)),)

    def lines(self) -> Sequence[str]:
        """Where the pictures are."""
        return (f"with pictures in {self.file}",)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to do: a share of the layers (1 is all), samples of a distribution, processes; what an earlier
    run finished; which exhibits (none: all), and in what time."""

    share: float = 1.0
    num_samples: int = 4000
    num_processes: int = 2
    kept: Kept = field(default_factory=Kept)
    only: tuple[str, ...] = ()
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"share {self.share}: expected more than 0 and at most 1.")
        if self.num_samples < 1:
            raise UsageError(f"samples {self.num_samples}: expected at least 1.")


@runtime_checkable
class Reproduction(Protocol):
    """One paper. It `resumes` if it keeps finished parts; `exhibits` are those that can be made alone, in a
    time that is given."""

    resumes: ClassVar[bool]
    exhibits: ClassVar[tuple[str, ...]]

    @property
    def title(self) -> str:
        """The paper, for people."""
        ...

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        ...


def report_page(title: str, exhibits: Sequence[Exhibit], conditions: str) -> str:
    """One HTML file that needs no network."""
    parts = [note(conditions), heading("At a glance")]
    parts.append(html_table(_HEADS, list(_rows(exhibits))))
    for exhibit in exhibits:
        picture = [drawn(exhibit.picture)] if exhibit.picture else []
        parts += [heading(f"{exhibit.name}: {exhibit.title}"), *picture, note(exhibit.said)]
        if exhibit.rows:
            parts.append(html_table(exhibit.heads, exhibit.rows))
    return page(title, parts)


_HEADS = ("exhibit", "figure", "ours", "the paper's")


def _rows(exhibits: Sequence[Exhibit]) -> Iterator[tuple[str, ...]]:
    for exhibit in exhibits:
        for figure in exhibit.figures:
            yield exhibit.name, figure.what, _text(figure.ours), _text(figure.paper)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
