"""Results of `tw.map` side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.results import Result, Table


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """A layer of several results: cycles and energy of each, None where a result lacks the layer."""

    name: str
    cycles: tuple[int | None, ...]
    energy_pj: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, repr=False)
class MapComparison(Result):
    """Results of `tw.map` side by side: the same layers by other mappers, or on other machines."""

    results: tuple[str, ...]
    layers: tuple[ComparedLayer, ...]
    total: ComparedLayer

    def tables(self) -> Sequence[Table]:
        """Cycles and energy of each layer; of the second result on also relative to the first."""
        rows = []
        for layer in (*self.layers, self.total):
            cells = [layer.name]
            for figures, unit in ((layer.cycles, ""), (layer.energy_pj, " µJ")):
                for number, value in enumerate(figures):
                    cells.append(_beside(value, figures[0], number, unit))
            rows.append(tuple(cells))
        heads = ["layer", *(f"cycles, {name}" for name in self.results)]
        heads += [f"energy, {name}" for name in self.results]
        return (Table(tuple(heads), tuple(rows), "", tuple(range(1, len(heads)))),)

    def __repr__(self) -> str:
        return f"MapComparison({', '.join(self.results)}: {len(self.layers)} layers)"


def _beside(value: float | None, first: float | None, number: int, unit: str) -> str:
    if value is None:
        return "-"
    said = f"{value / 1e6:,.2f}{unit}" if unit else f"{value:,}"
    return f"{said} ({value / first:.2f} x)" if number and first else said


Figures = tuple[int, float]
"""Cycles and pJ."""


def compared(
    results: Sequence[str], layers: Sequence[Mapping[str, Figures]], totals: Sequence[Figures]
) -> MapComparison:
    """Results by what they are called, with the figures of their layers by name, and of all."""
    names = dict.fromkeys(name for listed in layers for name in listed)
    return MapComparison(
        tuple(results),
        tuple(_compared(name, [listed.get(name) for listed in layers]) for name in names),
        _compared("all", totals),
    )


def _compared(name: str, figures: Sequence[Figures | None]) -> ComparedLayer:
    return ComparedLayer(
        name,
        tuple(None if pair is None else pair[0] for pair in figures),
        tuple(None if pair is None else pair[1] for pair in figures),
    )
