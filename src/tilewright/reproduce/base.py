"""What a reproduction consists of: exhibits, each with our figures beside the paper's and a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from tilewright.errors import UsageError
from tilewright.report.figure import drawn, heading, html_table, note, page
from tilewright.reproduce.kept import Kept
from tilewright.results import Result, Table, about
from tilewright.target_ref import TargetRef

Update = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done and how many there are."""


class Basis(StrEnum):
    """What figures of ours are: measured, simulated on a described machine or estimated by its cost model,
    estimated for a GPU where none is, or counted exactly; or none."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    COUNTED = "counted"
    ESTIMATED = "estimated"
    NOT_REPRODUCED = "not reproduced"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a paper and ours; None where there is none."""

    what: str
    ours: float | None
    paper: float | None
    basis: Basis | None = field(
        default=None, metadata=about("What ours is, where not the exhibit's.", optional=True)
    )


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
    basis: Basis = field(kw_only=True, metadata=about("What our figures are, if any."))


@dataclass(frozen=True, slots=True)
class Printed:
    """A table or figure that a paper prints. `why_not` is empty where it is reproduced."""

    name: str
    title: str
    why_not: str = ""


DRAWING = "A drawing of the method, without results."
NOTATION = "Explains notation, without results."


@dataclass(frozen=True, slots=True)
class ReproducedPaper(Result):
    """A paper's tables and figures, ours beside the paper's."""

    paper: str
    file: Path
    exhibits: tuple[Exhibit, ...]

    def tables(self) -> Sequence[Table]:
        """Our figures beside the paper's, and what has none."""
        missing = tuple(_missing(self.exhibits))
        figures = Table(_HEADS, tuple(_rows(self.exhibits)), right=(3, 4))
        return (figures, Table(_MISSING_HEADS, missing)) if missing else (figures,)

    def lines(self) -> Sequence[str]:
        """Where the pictures are."""
        return (f"with pictures in {self.file}",)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to do: a share of the layers (1 is all), samples of a distribution, processes; what an earlier
    run finished; which exhibits (none: all), and in what time; a GPU to measure on or estimate for, too."""

    share: float = 1.0
    num_samples: int = 4000
    num_processes: int = 2
    kept: Kept = field(default_factory=Kept)
    only: tuple[str, ...] = ()
    budget_s: float | None = None
    device: TargetRef | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"share {self.share}: expected more than 0 and at most 1.")
        if self.num_samples < 1:
            raise UsageError(f"samples {self.num_samples}: expected at least 1.")


@runtime_checkable
class Reproduction(Protocol):
    """One paper. It `resumes` if it keeps finished parts, and `measures_devices` beside the processor;
    `exhibits` are those that can be made alone, in a time that is given; `printed` is every table and figure
    of the paper, in its order."""

    title: ClassVar[str]
    resumes: ClassVar[bool] = False
    measures_devices: ClassVar[bool] = False
    exhibits: ClassVar[tuple[str, ...]] = ()
    printed: ClassVar[tuple[Printed, ...]]

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        ...


def with_missing(
    printed: Sequence[Printed], made: Sequence[Exhibit], only: Sequence[str] = ()
) -> tuple[Exhibit, ...]:
    """Exhibits in the paper's order, those that were not made with the reason; of `only` some if named."""
    places = {one.name: place for place, one in enumerate(printed)}
    placed: list[tuple[int, Exhibit]] = []
    shown: set[str] = set()
    place = -1
    for exhibit in made:
        names = printed_names(exhibit.name)
        shown.update(names)
        # What has no number in the paper follows what it was made behind.
        place = places[names[0]] if names else place
        placed.append((place, exhibit))
    for one in printed:
        if one.name not in shown and (not only or one.name in only):
            why_not = one.why_not or "Left out of this run: its share or time did not reach it."
            exhibit = Exhibit(one.name, one.title, why_not, basis=Basis.NOT_REPRODUCED)
            placed.append((places[one.name], exhibit))
    return tuple(exhibit for _, exhibit in sorted(placed, key=lambda pair: pair[0]))


def printed_names(name: str) -> tuple[str, ...]:
    """The tables or figures of a paper that an exhibit of this name shows.

    >>> printed_names("Figure 6 on k80"), printed_names("Figures 8 to 10"), printed_names("Choices")
    (('Figure 6',), ('Figure 8', 'Figure 9', 'Figure 10'), ())
    """
    match = _NUMBERED.match(name)
    if match is None:
        return ()
    kind, first, last = match[1], match[2], match[3]
    numbers = [first] if last is None else [str(n) for n in range(int(first), int(last) + 1)]
    return tuple(f"{kind} {number}" for number in numbers)


_NUMBERED = re.compile(r"(Figure|Table)s? (\d+|[IVX]+)(?: (?:to|and) (\d+))?")


def report_page(title: str, exhibits: Sequence[Exhibit], conditions: str) -> str:
    """One HTML file that needs no network."""
    parts = [note(conditions), heading("At a glance")]
    parts.append(html_table(_HEADS, list(_rows(exhibits))))
    missing = list(_missing(exhibits))
    parts += [html_table(_MISSING_HEADS, missing, is_words=True)] if missing else []
    for exhibit in exhibits:
        if exhibit.basis is Basis.NOT_REPRODUCED:
            continue
        picture = [drawn(exhibit.picture)] if exhibit.picture else []
        parts += [heading(f"{exhibit.name}: {exhibit.title}"), *picture]
        parts.append(note(f"{exhibit.basis.capitalize()}. {exhibit.said}"))
        if exhibit.rows:
            parts.append(html_table(exhibit.heads, exhibit.rows))
    return page(title, parts)


_HEADS = ("exhibit", "basis", "figure", "ours", "the paper's")
_MISSING_HEADS = ("not reproduced", "what it shows", "why")


def _rows(exhibits: Sequence[Exhibit]) -> Iterator[tuple[str, ...]]:
    for exhibit in exhibits:
        if exhibit.basis is Basis.NOT_REPRODUCED:
            continue
        # An exhibit of rows alone is listed, too.
        for figure in exhibit.figures or (Figure(exhibit.title, None, None),):
            basis = figure.basis or exhibit.basis
            yield exhibit.name, basis, figure.what, _text(figure.ours), _text(figure.paper)


def _missing(exhibits: Sequence[Exhibit]) -> Iterator[tuple[str, ...]]:
    for exhibit in exhibits:
        if exhibit.basis is Basis.NOT_REPRODUCED:
            yield exhibit.name, exhibit.title, exhibit.said


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
