"""Tables of what was planned, each ratio beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.derive import OperatorClass
from tilewright.partition.pcgc.rules import RuleTable
from tilewright.report.figure import Point, scatter
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.ios.processor import Measured
from tilewright.reproduce.pcgc.examples import Example
from tilewright.reproduce.pcgc.paper import Board, mean
from tilewright.reproduce.pcgc.runs import (
    DEFAULTS,
    ENERGY,
    LIMIT,
    RELAY,
    SIDE_BY_SIDE,
    STATIC,
    TIME,
    WITHIN,
    Outcome,
    Planned,
)

Found = Mapping[str, Outcome]
"""By row of a board's tables."""


def rules() -> Exhibit:
    """Figure 4, which is missing from the text."""
    table, classes = RuleTable.default(), tuple(OperatorClass)
    rows = tuple((p.value, *(str(table.of(p, c)) for c in classes)) for p in classes)
    return Exhibit(
        "Figure 4",
        "the rule table, producer by reader",
        "The figure is an image that the text does not repeat. Stated or shown in its examples are: a "
        "complex operator and what is algebraic or broadcast (stable), two complex ones, a 1x1 convolution "
        "and one of 3x3 or 5x5, a pooling and a 1x1 convolution (evaluate), and Concat (prohibited). The "
        "others follow from the classes; a file may say otherwise.",
        heads=("producer", *(c.value for c in classes)),
        rows=rows,
        basis=Basis.COUNTED,
    )


def drawn(found: Sequence[Example]) -> Exhibit:
    """Examples 1 to 5."""
    rows = tuple((e.name, e.machine, ", ".join(e.subgraphs), e.said or "stable") for e in found)
    return Exhibit(
        "Figures 8 to 12",
        "examples 1 to 5 on the three described machines",
        "Graphs as the text draws them, static fusion cut again for time. Examples 2 and 5 say that machines "
        "decide differently. So do these: the buffers of the Jetson nano do not hold what passes between two "
        "large convolutions, those of the others do. Example 4 is in the simulator: main memory is one port "
        "that all units share, so several units take more than the longest; where memory never binds, they "
        "take the longest, inside of one fused operator, too.",
        heads=("example", "machine", "subgraphs", "what the cost model said, or the schedule's time"),
        rows=rows,
        basis=Basis.SIMULATED,
    )


def table(board: Board, found: Found) -> Exhibit:
    """Two tables of one board: times and powers as ratios."""
    rows: list[tuple[str, ...]] = []
    others = (RELAY, STATIC, TIME)
    for row in board.rows:
        plans = found[row.name].plans
        best = plans[ENERGY]
        rows.append(
            (
                row.name,
                *(_ratio(best.time_ms, plans[name].time_ms) for name in others),
                f"{board.beside_nearest(row.times_ms):.2f}",
                *(_ratio(best.energy_mj, plans[name].energy_mj) for name in others),
                f"{board.beside_nearest(row.energies_mj):.2f}",
                _ratio(best.power_w, plans[RELAY].power_w),
                f"{board.beside_nearest(row.powers_w):.2f}",
                f"{best.num_subgraphs} of {plans[RELAY].num_subgraphs}",
                f"{max(found[row.name].decided_s[name] for name in (TIME, ENERGY)):.1f}",
            )
        )
    return Exhibit(
        board.tables,
        f"PCGC for energy over other planners, {board.name}",
        f"Ours: simulated on {board.machine}, energy and time of whole plans; each figure is that of PCGC "
        "for energy over that of another planner, below 1 where PCGC is better. The paper's: PCGC over "
        f"{board.nearest}, whose fusion is most like Relay's rule; its other planners are none of ours. "
        f"{_difference(board)} Watts follow from energy and time and do not add up, so energy is what is "
        "minimised.",
        tuple(_figures(board, found)),
        heads=(
            "network",
            "time / Relay",
            "/ static fusion",
            "/ PCGC for time",
            f"the paper's / {board.nearest}",
            "energy / Relay",
            "/ static fusion",
            "/ PCGC for time",
            f"the paper's / {board.nearest}",
            "power / Relay",
            f"the paper's / {board.nearest}",
            "subgraphs of Relay's",
            "s to decide",
        ),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _figures(board: Board, found: Found) -> Sequence[Figure]:
    outcomes = [found[row.name] for row in board.rows]

    def gain(name: str, over: str) -> float:
        return mean([o.plans[over].energy_mj / o.plans[name].energy_mj - 1 for o in outcomes])

    paper_energy = [board.beside_nearest(row.energies_mj) for row in board.rows]
    paper_time = [board.beside_nearest(row.times_ms) for row in board.rows]
    return (
        Figure(
            f"mean energy over that of {board.nearest} or Relay's rule",
            mean([o.plans[ENERGY].energy_mj / o.plans[RELAY].energy_mj for o in outcomes]),
            mean(paper_energy),
        ),
        Figure(
            f"mean time over that of {board.nearest} or Relay's rule",
            mean([o.plans[TIME].time_ms / o.plans[RELAY].time_ms for o in outcomes]),
            mean(paper_time),
        ),
        Figure("energy that re-cutting saves over static fusion, %", 100 * gain(ENERGY, STATIC), None),
        Figure(
            "networks whose energy falls when cut again",
            sum(o.plans[ENERGY].energy_mj < o.plans[STATIC].energy_mj * (1 - 1e-6) for o in outcomes),
            None,
        ),
        Figure("most energy over static fusion", _worst(outcomes, ENERGY, (STATIC,), _energy_mj), None),
        Figure("most energy over a default", _worst(outcomes, ENERGY, DEFAULTS, _energy_mj), None),
        Figure("most time over static fusion", _worst(outcomes, TIME, (STATIC,), _time_ms), None),
        Figure("most time over a default", _worst(outcomes, TIME, DEFAULTS, _time_ms), None),
        Figure(
            f"most time within {LIMIT} over PCGC for time",
            max(o.plans[WITHIN].time_ms / o.plans[TIME].time_ms for o in outcomes),
            None,
        ),
        Figure(
            "mean time side by side over one after another",
            mean([o.plans[SIDE_BY_SIDE].time_ms / o.plans[TIME].time_ms for o in outcomes]),
            None,
        ),
        Figure("the paper's gain in power, %, from its tables", None, 100 * mean(board.power_gains())),
        Figure("the paper's gain in power, %, by its text", None, 100 * board.claimed),
        Figure("the paper's gain in energy, %, from its tables", None, 100 * mean(board.energy_gains())),
    )


def _worst(
    outcomes: Sequence[Outcome], name: str, others: Sequence[str], what: Callable[[Planned], float]
) -> float:
    """How much more than the best of others, of the network where that is most."""
    return max(what(o.plans[name]) / min(what(o.plans[other]) for other in others) for o in outcomes)


def _energy_mj(plan: Planned) -> float:
    return plan.energy_mj


def _time_ms(plan: Planned) -> float:
    return plan.time_ms


def _difference(board: Board) -> str:
    recomputed = 100 * mean(board.power_gains())
    return (
        f"The text claims {100 * board.claimed:.1f} % better power on average; the mean over all planners "
        f"and networks of its own table is {recomputed:.1f} %."
    )


def frontiers(board: Board, found: Found) -> Exhibit:
    """Time against energy."""
    rows = [
        (row.name, str(number), f"{time_ms:.4f}", f"{energy_mj:.4f}")
        for row in board.rows
        for number, (time_ms, energy_mj) in enumerate(found[row.name].frontier, start=1)
    ]
    points = [
        Point(time_ms, energy_mj, row.name)
        for row in board.rows
        for time_ms, energy_mj in found[row.name].frontier
    ]
    return Exhibit(
        f"Frontier, {board.name}",
        "time against energy of one run",
        "Plans than which none that was seen is better in both, at corners of the convex hull, by the cost "
        "model (subgraphs one after another). Often one plan is best in both: less traffic saves time and "
        "energy, and static power makes time cost energy.",
        (Figure("corners in all", len(rows), None),),
        scatter("Time against energy", "ms", "mJ", points),
        ("network", "corner", "ms", "mJ"),
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def here(found: Mapping[str, Mapping[str, Measured]]) -> Exhibit:
    """Time on this processor."""
    rows = tuple((network, *map(_milliseconds, by.values())) for network, by in found.items())
    ratios = {
        network: [m.median_ns / next(iter(by.values())).median_ns for m in by.values()]
        for network, by in found.items()
    }
    heads = next(iter(found.values())).keys() if found else ()
    return Exhibit(
        "This processor",
        "measured time by partition, whole models in turns",
        "Median and quartiles in ms. Energy is not measured: without counters there is none to report.",
        tuple(
            Figure(f"{network}: PCGC over Relay's rule", values[-1], None)
            for network, values in ratios.items()
        ),
        heads=("network", *heads),
        rows=rows,
        basis=Basis.MEASURED,
    )


def _milliseconds(measured: Measured) -> str:
    median, low, high = (ns / 1e6 for ns in (measured.median_ns, measured.low_ns, measured.high_ns))
    return f"{median:.3f} ({low:.3f}, {high:.3f})"


def _ratio(ours: float, other: float) -> str:
    return f"{ours / other:.3f}"
