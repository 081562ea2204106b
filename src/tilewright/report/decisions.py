"""The decisions of a plan as a part of its page: blocks on the graph, and what else each would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.joint.launched.decisions import Decision
from tilewright.planning.portfolio import Recipe
from tilewright.report.figure import heading, html_table, note
from tilewright.report.graph_view import DrawnKernel, block_section

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph

Tried = tuple[Recipe, float]
"""A recipe that was tried, and what its plan costs."""


def decision_parts(graph: Graph, decisions: Sequence[Decision]) -> list[str]:
    """Blocks on the graph, what the columns say, and a row for each block; nothing for plans without
    decisions."""
    if not decisions:
        return []
    total_ns = sum(d.cost_ns for d in decisions)
    rows = [
        (
            f"{number}",
            _ends(d),
            f"{len(d.nodes):,}",
            d.what,
            f"{d.cost_ns / 1e3:,.2f}",
            f"{100 * d.cost_ns / total_ns:.1f} %" if total_ns else "-",
            _more(_way_ns(d)),
            _more(d.without_ns),
        )
        for number, d in enumerate(decisions)
    ]
    heads = ("block", "operators", "number", "runs as", "µs", "share", "next best way, µs", "without it, µs")
    return [
        heading("Blocks on the graph"),
        _on_graph(graph, decisions),
        heading("Decisions"),
        note(_SAID),
        html_table(heads, rows),
    ]


def _on_graph(graph: Graph, decisions: Sequence[Decision]) -> str:
    """A box for each block, with what was decided and what else it would cost."""
    by_name = {node.name: node for node in graph.nodes}
    blocks = [
        DrawnKernel(
            f"block {number}: {d.what}",
            tuple(by_name[name] for name in d.nodes),
            (
                f"the next best way to run these operators: {_more(_way_ns(d))} µs",
                f"the best plan without this block: {_more(d.without_ns)} µs",
                *(f"{by_name[name].op_type} {name}" for name in d.nodes),
            ),
            d.cost_ns,
        )
        for number, d in enumerate(decisions)
    ]
    return block_section(graph, blocks, "simulated")


def planner_parts(chosen: Recipe, tried: Sequence[Tried], unit: str) -> list[str]:
    """Of each kind of planner, what was taken, and the least cost of a recipe with another one in its place;
    nothing where only one recipe was tried."""
    rows = [
        (kind, *row)
        for kind, of_recipe in _KINDS.items()
        for row in _alternatives([(of_recipe(recipe), cost) for recipe, cost in tried])
    ]
    if not rows:
        return []
    heads = ("", "choice", f"least cost, {unit}", "of the best")
    told = f"Taken: {chosen}. {_PLANNERS}"
    return [heading("Planners"), note(told), html_table(heads, rows, is_words=True)]


_KINDS: Mapping[str, Callable[[Recipe], str]] = {
    "sums": lambda r: "in parts" if r.splits_sums else "whole",
    "partition": lambda r: r.partition.partition("{")[0],
    "schedule": lambda r: r.schedule.partition("{")[0],
    "memory": lambda r: r.memory,
    "execution": lambda r: r.execution or "as the machine is",
}
_MOST_ROWS = 8


def _alternatives(tried: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str, str]]:
    """Choices by their least cost, of those where there are several."""
    least: dict[str, float] = {}
    for choice, cost in tried:
        least[choice] = min(least.get(choice, cost), cost)
    if len(least) < 2:
        return
    best = min(least.values())
    for choice, cost in sorted(least.items(), key=lambda item: item[1])[:_MOST_ROWS]:
        yield choice, f"{cost:,.0f}", f"{cost / best:.3f}" if best else "-"


def _ends(decision: Decision) -> str:
    """The first and the last operator."""
    nodes = decision.nodes
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} … {nodes[-1]}"


def _way_ns(decision: Decision) -> float | None:
    return None if decision.other_ns is None else decision.other_ns - decision.cost_ns


def _more(more_ns: float | None) -> str:
    return "-" if more_ns is None else f"{more_ns / 1e3:+,.2f}"


_SAID = (
    "Blocks of the plan in order. The next best way: what its operators would take longer as the next best "
    "block of the same operators. Without it: what the plan would take longer on the best path that cuts "
    "otherwise here. Both are of blocks that the search priced; a dash: it priced no other."
)
_PLANNERS = (
    "Of each choice the least cost of all plans that were tried with it, whatever the rest of their recipes: "
    "how much worse the best plan without the first is, the second says. A joint plan's blocks may come from "
    "several of them."
)
