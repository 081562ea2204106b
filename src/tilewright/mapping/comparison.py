"""Results of `tw.map` side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.mapping.results import MapResult
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


def compared(results: Sequence[MapResult]) -> MapComparison:
    """Results side by side; layers are the same by their names."""
    by_name = [{layer.name: layer for layer in result.layers} for result in results]
    names = dict.fromkeys(name for layers in by_name for name in layers)
    found = [[layers.get(name) for layers in by_name] for name in names]
    totals = [result.total for result in results]
    return MapComparison(
        tuple(f"{result.mapper} on {result.machine}" for result in results),
        tuple(
            ComparedLayer(
                name,
                tuple(None if layer is None else layer.cycles for layer in layers),
                tuple(None if layer is None else layer.energy_pj for layer in layers),
            )
            for name, layers in zip(names, found, strict=True)
        ),
        ComparedLayer(
            "all", tuple(total.cycles for total in totals), tuple(total.energy_pj for total in totals)
        ),
    )
