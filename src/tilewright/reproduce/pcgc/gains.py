"""What of the gains is whose: static fusion, re-cutting by Algorithm 2, and other starting partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.report.figure import Point, scatter
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.pcgc.paper import BOARDS, Board, Row, mean
from tilewright.reproduce.pcgc.runs import BEST, BEST_TIME, LIMIT, RELAY, WITHIN, PcgcOutcome, Planned
from tilewright.reproduce.pcgc.tables import Found

_ROUNDING = 1e-6
_STATIC_FUSION = "static-fusion"


@dataclass(frozen=True, slots=True)
class _Objective:
    """What is minimised."""

    name: str
    key: str
    unit: str
    best: str

    def of(self, plan: Planned) -> float:
        """The amount that a plan takes."""
        return plan.energy_mj if self.key == "energy" else plan.time_ms

    def of_paper(self, row: Row) -> Sequence[float]:
        """By planner."""
        return row.energies_mj if self.key == "energy" else row.times_ms


_ENERGY = _Objective("energy", "energy", "mJ", BEST)
_TIME = _Objective("time", "latency", "ms", BEST_TIME)


def exhibits(found: Mapping[str, Found]) -> Iterator[Exhibit]:
    """Where gains come from and what re-cutting adds to each starting partition, for energy and for time."""
    pairs = [
        (board, row, found[board.name][row.name])
        for board in BOARDS
        for row in board.rows
        if row.name in found[board.name]
    ]
    for objective in (_ENERGY, _TIME):
        yield _sources(pairs, objective)
        yield _recutting(pairs, objective)


_Pairs = Sequence[tuple[Board, Row, PcgcOutcome]]


def _sources(pairs: _Pairs, objective: _Objective) -> Exhibit:
    """The whole gain over Relay's rule as a product of what each step contributes."""
    rows: list[tuple[str, ...]] = []
    steps: list[tuple[float, ...]] = []
    for board, row, outcome in pairs:
        cut = outcome.cuts[objective.key][_STATIC_FUSION]
        relay = objective.of(outcome.plans[RELAY])
        amounts = [
            relay,
            *map(objective.of, (cut.whole, cut.greedy, cut.exact, outcome.plans[objective.best])),
        ]
        ratios = [after / before for before, after in pairwise(amounts)]
        steps.append((*ratios, amounts[-1] / relay))
        rows.append(
            (
                row.name,
                board.name,
                f"{relay:.4g}",
                *(f"{ratio:.4f}" for ratio in steps[-1]),
                f"{board.beside_nearest(objective.of_paper(row)):.2f}",
            )
        )
    names = ("static fusion", "Algorithm 2", "exact re-cutting", "other starts", "all together")
    figures = [
        Figure(f"mean factor of {name}", mean([of_pair[place] for of_pair in steps]), None)
        for place, name in enumerate(names)
    ]
    if objective is _ENERGY:
        figures.append(
            Figure(
                f"most time of the plan within {LIMIT} over that for time",
                max(o.plans[WITHIN].time_ms / o.plans[BEST_TIME].time_ms for _, _, o in pairs),
                None,
            )
        )
    return Exhibit(
        f"Sources of the gain in {objective.name}",
        "what each step takes over the one before it",
        f"Each factor is of {objective.name} over that of the column before, below 1 where it saves; their "
        "product is the last but one column. Static fusion over Relay's rule, Algorithm 2 and exact "
        "re-cutting from static fusion are the paper's. What other starting partitions add is not: most of "
        "it is GraphTurbo's grouping, with what the rules fuse beyond it. The paper's figure is that of PCGC "
        "over the planner of its own that fuses most like Relay's rule.",
        tuple(figures),
        heads=(
            "network",
            "board",
            f"Relay's rule, {objective.unit}",
            "static fusion",
            "Algorithm 2",
            "exact",
            "other starts",
            "all together",
            "the paper's PCGC",
        ),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _recutting(pairs: _Pairs, objective: _Objective) -> Exhibit:
    """Algorithm 2 and exact re-cutting over the same starting partition."""
    rows: list[tuple[str, ...]] = []
    saved: dict[str, list[float]] = {}
    for board, row, outcome in pairs:
        for start, cut in outcome.cuts[objective.key].items():
            whole, *others = (objective.of(plan) for plan in (cut.whole, cut.greedy, cut.exact))
            saved.setdefault(start, []).append(1 - others[0] / whole)
            rows.append(
                (
                    row.name,
                    board.name,
                    start,
                    f"{whole:.4g}",
                    *(f"{other / whole:.4f}" for other in others),
                    ", ".join(str(p.num_subgraphs) for p in (cut.whole, cut.greedy, cut.exact)),
                )
            )
    figures: list[Figure] = []
    for start, shares in saved.items():
        changed = [share for share in shares if share > _ROUNDING]
        figures += [
            Figure(f"{start}: pairs that Algorithm 2 improves, of {len(shares)}", len(changed), None),
            Figure(f"{start}: most saved, %", 100 * max(shares), None),
            Figure(f"{start}: mean saved, %", 100 * mean(shares), None),
        ]
    if objective is _ENERGY:
        checked = [outcome.checked for _, _, outcome in pairs]
        figures += [
            Figure(f"clusters that may be cut, {what}", number, None, Basis.COUNTED)
            for what, number in (
                ("of all starts", sum(c.num_clusters for c in checked)),
                ("with an exact answer", sum(c.num_exact for c in checked)),
                ("of these dearer by Algorithm 2", sum(c.num_missed for c in checked)),
            )
        ]
    return Exhibit(
        f"Re-cutting for {objective.name}",
        "Algorithm 2 from equal starting partitions",
        f"Of each starting partition the {objective.name} as it is, then that of the same cut again over it: "
        "by Algorithm 2, and exactly where the fusions of a cluster form a tree, else the best of intervals "
        "and Algorithm 2. static-fusion is the paper's; rules-alone has no condition on what the chip holds, "
        "so that Algorithm 2 decides all. Subgraphs are priced whole, not in slices.",
        tuple(figures),
        heads=(
            "network",
            "board",
            "start",
            f"as it is, {objective.unit}",
            "Algorithm 2",
            "exact",
            "subgraphs",
        ),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def frontier(found: Mapping[str, Found]) -> Exhibit:
    """Time against energy."""
    corners = [
        (f"{row.name}, {board.name}", *corner)
        for board in BOARDS
        for row in board.rows
        if row.name in found[board.name]
        for corner in found[board.name][row.name].frontier
    ]
    return Exhibit(
        "Frontier",
        "time against energy of one run",
        "Plans of every start, of which none that was seen is better in both, at corners of the convex hull, "
        "by the cost model (subgraphs one after another). Often one plan is best in both: less traffic saves "
        "time and energy, and static power makes time cost energy.",
        (Figure("corners in all", len(corners), None),),
        scatter("Time against energy", "ms", "mJ", [Point(ms, mj, name) for name, ms, mj in corners]),
        ("network, board", "ms", "mJ"),
        tuple((name, f"{ms:.4f}", f"{mj:.4f}") for name, ms, mj in corners),
        basis=Basis.SIMULATED,
    )
