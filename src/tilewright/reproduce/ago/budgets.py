"""Figure 8: how many measurements a subgraph takes until they bring nothing more, beside its weight."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from onnx import ModelProto

from tilewright.compiler import compile_graph
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.partition.ago.weights import WeightRule
from tilewright.planning import Budget
from tilewright.report.figure import Bars, Line, Point, bar_chart, scatter
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.steps import TuningSettings
from tilewright.tuning.database import TuningDatabase
from tilewright.zoo.builder import Builder

STRUCTURES = (("Conv",), ("Conv", "Add"), ("Conv", "Add", "Relu"), ("Conv", "Add", "Relu", "Conv"))
"""Operators in a row. Which ones the paper's figure has, its text does not say beyond the second."""
SHAPES = ((32, 64, 14), (64, 96, 14), (32, 64, 28), (64, 96, 28), (64, 128, 56))
"""Channels of the input and of the result, side of the image: those of the paper."""
_BUDGET = Budget(160)
_STABLE = 1.015  # a form within this of the best is as good


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Operators in a row on an image, a convolution of 3 x 3 with padding 1 among them."""

    operators: tuple[str, ...]
    shape: tuple[int, int, int]

    @property
    def structure(self) -> str:
        """As the paper writes it."""
        return " + ".join(self.operators)

    @property
    def size(self) -> str:
        """As the paper writes it."""
        inputs, outputs, side = self.shape
        return f"I{inputs}O{outputs}HW{side}"

    def model(self) -> ModelProto:
        """The network that has nothing else."""
        inputs, outputs, side = self.shape
        b = Builder("subgraph", seed=0)
        value = b.input("x", (1, inputs, side, side))
        for number, operator in enumerate(self.operators):
            name = f"{operator}{number}"
            if operator == "Conv":
                value = b.conv(value, outputs, 3, padding=1, name=name)
            elif operator == "Add":
                value = b.add(value, b.input("other", (1, outputs, side, side)), name=name)
            else:
                value = b.relu(value, name=name)
        b.output(value, "y")
        return b.finish()


SUBGRAPHS = tuple(Subgraph(operators, shape) for shape in SHAPES for operators in STRUCTURES)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The weight of a subgraph, and its forms' times over the first one's, round by round."""

    weight: float
    rounds: tuple[tuple[float, ...], ...]

    @property
    def best(self) -> float:
        """The best form's time over the first one's."""
        return min((1.0, *(ratio for measured in self.rounds for ratio in measured)))

    @property
    def num_measured(self) -> int:
        """All measurements."""
        return sum(map(len, self.rounds))

    @property
    def num_until_stable(self) -> int:
        """Measurements up to the round whose best is as good as the best of all; 0: the first form is."""
        enough, count = self.best * _STABLE, 0
        if enough >= 1.0:
            return 0
        for measured in self.rounds:
            count += len(measured)
            if min(measured) <= enough:
                break
        return count


def tuned(subgraph: Subgraph, budget: Budget = _BUDGET) -> Tuned:
    """Search the forms of a subgraph as a whole, on one thread of this processor.

    Raises:
        KeyboardInterrupt: the user ended the search, whose measurements are not all that there would be.
    """
    graph = load_onnx(subgraph.model())
    weight = WeightRule().of_all(graph.nodes).total
    with tempfile.TemporaryDirectory(prefix="tilewright-ago-") as folder:
        cache = Path(folder)
        options = Options(threads=1, partition="ago{threshold=1e9}", cache_dir=cache, budget=budget)
        found = compile_graph(graph, options, tuning=TuningSettings("afresh", "evolutionary")).tuning
        if found is not None and found.is_interrupted:
            raise KeyboardInterrupt
        return Tuned(weight, tuple(_rounds(TuningDatabase.in_folder(cache))))


def _rounds(database: TuningDatabase) -> Iterator[tuple[float, ...]]:
    """Ratios of forms by the time at which they were measured, each form once."""
    found = sorted((seen for _, seen in database.all_observations()), key=lambda seen: seen.measured_at_s)
    known: set[str] = set()
    for _, together in groupby(found, key=lambda seen: seen.measured_at_s):
        new = [seen for seen in together if seen.candidate_key not in known]
        known.update(seen.candidate_key for seen in new)
        if new:
            yield tuple(seen.ratio for seen in new)


def figure_8(found: Mapping[Subgraph, Tuned]) -> Exhibit:
    """Budgets by size and structure, and over weights."""
    sizes = list(dict.fromkeys(subgraph.size for subgraph in found))
    by_name = {(s.size, s.structure): t for s, t in found.items()}
    structures = list(dict.fromkeys(subgraph.structure for subgraph in found))
    bars = [
        Bars(
            structure,
            tuple(
                None if (tuned := by_name.get((size, structure))) is None else float(tuned.num_until_stable)
                for size in sizes
            ),
        )
        for structure in structures
    ]
    weights = [t.weight for t in found.values()]
    budgets = [float(t.num_until_stable) for t in found.values()]
    figures = [
        Figure("most weight over the least", max(weights) / min(weights), None, Basis.COUNTED),
        Figure("most measurements", max(budgets), None),
        Figure("mean of measurements", statistics.fmean(budgets), None),
    ]
    if len(found) > 2 and len(set(weights)) > 1 and len(set(budgets)) > 1:
        correlation = statistics.correlation(weights, budgets)
        figures.append(Figure("correlation of measurements and weight", correlation, None))
    colours = {structure: number for number, structure in enumerate(structures)}
    points = [
        Point(t.weight, 1.0 + t.num_until_stable, f"{s.structure}, {s.size}", colour=colours[s.structure])
        for s, t in found.items()
    ]
    return Exhibit(
        "Figure 8",
        "measurements until tuning a subgraph brings nothing more, by size and structure",
        "On one thread of this processor: forms of each subgraph as a whole, up to "
        f"{_BUDGET.max_evaluations} of them; those up to the round after which the best is within "
        f"{100 * (_STABLE - 1):.1f} % of the best of all. Weights are those of equation 1 as our partitioner "
        "has them. The paper's figure is an image of which the text gives no numbers but says that budgets "
        "grow in proportion to weights. Here they grow with the number of convolutions, as weights do, but "
        "hardly with extents: a subgraph has about as many forms on a large image as on a small one.",
        tuple(figures),
        bar_chart("Measurements until stable", "measurements", sizes, bars)
        + scatter("Over the weight", "weight", "1 + measurements", points, _fit(weights, budgets)),
        ("subgraph", "size", "weight", "measurements until stable", "measured", "best over first"),
        tuple(
            (
                s.structure,
                s.size,
                f"{t.weight:.0f}",
                str(t.num_until_stable),
                str(t.num_measured),
                f"{t.best:.2f}",
            )
            for s, t in found.items()
        ),
        basis=Basis.MEASURED,
    )


def _fit(weights: Sequence[float], budgets: Sequence[float]) -> list[Line]:
    """The line of least squares, as far as it is above one measurement."""
    if len(set(weights)) < 2:
        return []
    slope, start = statistics.linear_regression(weights, budgets)
    ends = [(w, 1.0 + start + slope * w) for w in (min(weights), max(weights))]
    return [Line("least squares", tuple(ends))] if all(y >= 1 for _, y in ends) else []
