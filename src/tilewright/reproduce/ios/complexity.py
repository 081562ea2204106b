"""Table 1, figures 5 and 13: how large the search is."""

from __future__ import annotations

from itertools import pairwise
from math import comb, log10

from tilewright.report.figure import Line, curves
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.ios.measured import Measurements

_PAPERS = "the paper's"
_MOST_CHAINS, _LENGTHS = 4, (1, 2, 3)


def table_1(measured: Measurements) -> Exhibit:
    """Transitions and schedules of the largest blocks."""
    rows = []
    figures = []
    for network in measured.networks:
        counts = measured.counts[network.name]
        bound = _bound(counts.num_operators, counts.width)
        rows.append(
            (
                network.name,
                str(counts.num_operators),
                str(counts.width),
                f"{bound:,.0f}",
                f"{network.bound:g}",
                f"{counts.num_transitions:,}",
                f"{network.num_transitions:g}",
                f"{counts.num_schedules:,}",
                f"{network.num_schedules:g}",
            )
        )
        figures += [
            Figure(f"{network.name}, bound of transitions", bound, network.bound),
            Figure(f"{network.name}, transitions", counts.num_transitions, network.num_transitions),
            Figure(
                f"{network.name}, log10 of schedules",
                log10(counts.num_schedules),
                log10(network.num_schedules),
            ),
        ]
    return Exhibit(
        "Table 1",
        "how large the search is for the largest block of each network",
        "Groups follow from one operator each, as in the released code, which reproduces every number to the "
        "digits that the paper prints. What the paper calls the largest block is the one with most "
        "transitions.",
        tuple(figures),
        heads=("network", "n", "d", "bound", _PAPERS, "transitions", _PAPERS, "schedules", _PAPERS),
        rows=tuple(rows),
        basis=Basis.COUNTED,
    )


def _bound(num_operators: float, width: int) -> float:
    """The paper's bound of transitions: chains as long as each other, none of which waits for another."""
    length = num_operators / width
    return float(((length + 2) * (length + 1) / 2) ** width)


def figure_5() -> Exhibit:
    """States and transitions of three operators."""
    from tilewright.schedule.ios.counts import count
    from tilewright.schedule.ios.endings import EndingSpace
    from tilewright.schedule.ios.graph import StageGraph

    found = count(EndingSpace(StageGraph.of_edges("abc", [("a", "b")]), "single-source"))
    return Exhibit(
        "Figure 5",
        "how the search goes through three operators, of which b follows a",
        "States are sets of operators that are left, the empty one included; a transition takes one ending "
        "away. The paper walks through 12 steps, one for each transition.",
        (
            Figure("states", found.num_states + 1, 6),
            Figure("transitions", found.num_transitions, 12),
            Figure("schedules", found.num_schedules, None),
            Figure("different stages", found.num_stages, None),
        ),
        basis=Basis.COUNTED,
    )


def figure_13() -> Exhibit:
    """Chains side by side, of which no operator waits for another chain's."""
    rows, figures = [], []
    lines = []
    for length in _LENGTHS:
        points = []
        for num_chains in range(1, _MOST_CHAINS + 1):
            transitions = _transitions_of_chains(num_chains, length)
            bound = comb(length + 2, 2) ** num_chains
            rows.append((str(num_chains), str(length), f"{transitions:,}", f"{bound:,}"))
            points.append((float(num_chains), log10(transitions)))
        figures.append(Figure(f"{_MOST_CHAINS} chains of {length}, transitions", transitions, bound))
        lines.append(Line(f"chains of {length}", tuple(points)))
    return Exhibit(
        "Figure 13",
        "chains side by side, of which the search is as large as the bound",
        "Counted by enumeration, beside the paper's bound, which counts the empty ending of each of the "
        "(c + 1)^d states, too: without these both are equal.",
        tuple(figures),
        curves("Transitions", "chains", "log10 of transitions", lines, is_logarithmic=False),
        ("chains", "operators of each", "transitions", "the bound"),
        tuple(rows),
        basis=Basis.COUNTED,
    )


def _transitions_of_chains(num_chains: int, length: int) -> int:
    """Transitions, and the empty endings that the bound counts."""
    from tilewright.schedule.ios.counts import count
    from tilewright.schedule.ios.endings import EndingSpace
    from tilewright.schedule.ios.graph import StageGraph

    chains = [[f"{chain}.{place}" for place in range(length)] for chain in range(num_chains)]
    edges = [edge for chain in chains for edge in pairwise(chain)]
    graph = StageGraph.of_edges([name for chain in chains for name in chain], edges)
    found = count(EndingSpace(graph, "component"))
    return found.num_transitions + found.num_states + 1
