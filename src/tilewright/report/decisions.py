"""The decisions of a joint plan as a part of its page: blocks beside their next best alternatives."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.joint.launched.decisions import Decision
from tilewright.report.figure import heading, html_table, note


def decision_parts(decisions: Sequence[Decision]) -> list[str]:
    """A heading, what the columns say, and a row for each block; nothing for plans without decisions."""
    if not decisions:
        return []
    total_ns = sum(d.cost_ns for d in decisions)
    rows = [
        (
            f"{number}",
            d.nodes[0] if len(d.nodes) == 1 else f"{d.nodes[0]} … {d.nodes[-1]}",
            f"{len(d.nodes):,}",
            d.what,
            f"{d.cost_ns / 1e3:,.2f}",
            f"{100 * d.cost_ns / total_ns:.1f} %" if total_ns else "-",
            _more(None if d.other_ns is None else d.other_ns - d.cost_ns),
            _more(d.without_ns),
        )
        for number, d in enumerate(decisions)
    ]
    heads = ("block", "operators", "number", "runs as", "µs", "share", "next best way, µs", "without it, µs")
    return [heading("Decisions"), note(_SAID), html_table(heads, rows)]


def _more(more_ns: float | None) -> str:
    return "-" if more_ns is None else f"{more_ns / 1e3:+,.2f}"


_SAID = (
    "Blocks of the plan in order. The next best way: what its operators would take longer as the next best "
    "block of the same operators. Without it: what the plan would take longer on the best path that cuts "
    "otherwise here. Both are of blocks that the search priced; a dash: it priced no other."
)
