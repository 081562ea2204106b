"""Figures and tables of what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.ago.paper import FIGURE_14, TRIVIAL
from tilewright.reproduce.ago.partitions import PLAIN, VARIANTS, Weighed
from tilewright.reproduce.base import Basis, Exhibit, Figure

_NUM_BINS = 11
_SHOWN = {
    "layerwise": ("Relay's rule", "layerwise"),
    "ago{accept=affix}": ("AGO as published", "ago"),
    "ago": ("AGO, exact rule", "ago"),
}
"""Partitioners of the picture: what each is called, and with which of the paper's it compares."""
_HEADS = (
    "graph",
    "partitioner",
    "subgraphs",
    "mean",
    "median",
    "Jain index",
    f"below {TRIVIAL:g}",
    "two and more complex",
    "subgraphs by complex operators",
)

Found = Mapping[tuple[str, str], Weighed]
"""By graph and partitioner."""


def figure_14(found: Found, num_operators: Mapping[str, int]) -> Exhibit:
    """The distribution of weights over the subgraphs of MobileViT."""
    groups = [f"[{i}, {i + 1})" for i in range(_NUM_BINS)]
    bars = [
        Bars(who, tuple(map(float, found[PLAIN, name].bins(_NUM_BINS)))) for name, (who, _) in _SHOWN.items()
    ]
    total = sum(found[PLAIN, "ago"].weights)
    sizes = ", ".join(f"{count} operators {graph}" for graph, count in num_operators.items())
    return Exhibit(
        "Figure 14",
        "weights of the subgraphs of MobileViT",
        f"Two graphs: {sizes}. The paper's was made by TVM, which recognises no layer normalisation, "
        "attention or SiLU as one operator, so the first of the two is compared. The coefficients of the "
        "weights are not in the paper (its figure 8 is an image); ours were fitted to the numbers of this "
        "figure on an emulation of TVM's graph, so that means, medians and Jain indices are no independent "
        "confirmation; that the graph of the zoo gives them without a further fit is one. The sum of all "
        f"weights is {total:,.0f}, the paper's 82 x 437 is {82 * 437:,}. Bars show how many subgraphs weigh "
        "between two powers of two.",
        tuple(_figures(found)),
        bar_chart("Subgraphs by weight (exponents of 2)", "subgraphs", groups, bars),
        _HEADS,
        tuple((graph, *_row(name, weighed)) for (graph, name), weighed in found.items()),
        basis=Basis.COUNTED,
    )


def readings() -> Exhibit:
    """What of the algorithm was chosen."""
    return Exhibit(
        "Choices",
        "what was chosen where the text leaves more than one reading",
        "Theorem 1 holds for two nodes of neighbouring stages, and for clusters if all stages are found anew "
        "after each merge; Definition 1 is too weak (three clusters can wait for each other though no two "
        "do), and a node with all of its affix set at once can make a cycle. So two clusters are merged at "
        "a time. By default all neighbours may join that no other path joins: all that the affix rule "
        "accepts, and more. Neighbours are those with an edge between them. A weight has log2(1 + s) for "
        "log(s), so that a loop of extent 1 does not make it 0; loops over rows of a product of matrices "
        "that could be one are one, since TVM flattens them.",
        rows=tuple((f"`{name}`", about) for name, about in VARIANTS.items()),
        heads=("partitioner", "what it is"),
        basis=Basis.COUNTED,
    )


def _figures(found: Found) -> Sequence[Figure]:
    figures: list[Figure] = []
    for name, (who, of_paper) in _SHOWN.items():
        ours, paper = found[PLAIN, name], FIGURE_14[of_paper]
        figures += (
            Figure(f"{who}: subgraphs", len(ours.weights), paper.num_subgraphs),
            Figure(f"{who}: mean weight", ours.mean, paper.mean),
            Figure(f"{who}: median weight", ours.median, paper.median),
            Figure(f"{who}: Jain index", ours.jain, paper.jain),
            Figure(f"{who}: weigh less than {TRIVIAL:g}", ours.num_trivial, paper.num_trivial),
            Figure(f"{who}: two and more complex operators", ours.num_complicated, None),
        )
    return figures


def _row(name: str, weighed: Weighed) -> tuple[str, ...]:
    return (
        name,
        str(len(weighed.weights)),
        f"{weighed.mean:.0f}",
        f"{weighed.median:.0f}",
        f"{weighed.jain:.2f}",
        str(weighed.num_trivial),
        str(weighed.num_complicated),
        weighed.complex_text(),
    )
