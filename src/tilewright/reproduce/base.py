"""What a reproduction consists of: exhibits, each with our figures beside the paper's and a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tilewright.report.figure import heading, html_table, note, page

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
    """One table or figure: its name in the paper, a picture as SVG, figures, the data, what is to be said."""

    name: str
    title: str
    said: str
    figures: tuple[Figure, ...] = ()
    picture: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to do: a share of the layers (1 is all), samples of a distribution, processes."""

    share: float = 1.0
    num_samples: int = 4000
    num_processes: int = 2


@runtime_checkable
class Reproduction(Protocol):
    """One paper."""

    @property
    def title(self) -> str:
        """The paper, for people."""
        ...

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        ...


def report_page(title: str, exhibits: Sequence[Exhibit], conditions: str) -> str:
    """One HTML file, without scripts or network."""
    parts = [note(conditions), heading("At a glance")]
    rows = [
        (exhibit.name, figure.what, _text(figure.ours), _text(figure.paper))
        for exhibit in exhibits
        for figure in exhibit.figures
    ]
    parts.append(html_table(("exhibit", "figure", "ours", "the paper's"), rows))
    for exhibit in exhibits:
        parts += [heading(f"{exhibit.name}: {exhibit.title}"), exhibit.picture, note(exhibit.said)]
        if exhibit.rows:
            parts.append(html_table(exhibit.heads, exhibit.rows))
    return page(title, parts)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
