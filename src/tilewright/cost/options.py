"""Options of the cost model of mappings: what it counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostOptions:
    """What the cost model counts. The defaults are Timeloop's rules; see `cost/nest_analysis.py`.

    With `link_transfers` an instance may take words from its neighbour; with `skips_pixels` input pixels that
    a stride jumps over are not counted; with `double_buffered` half of every capacity (but the outermost's,
    and that of a single word) holds the tile in use. With `elides_first_fills` nothing enters the place of an
    output that nothing was added to yet, as Timeloop 4 has it. With `multicasts_per_axis` one access serves
    instances in a line alone: every dim is spread along an axis of its own, a container with a mesh in
    version 0.4 of Timeloop's files, and equal tiles are found along one axis at a time.
    """

    link_transfers: bool = False
    skips_pixels: bool = False
    double_buffered: bool = False
    elides_first_fills: bool = False
    multicasts_per_axis: bool = False


TIMELOOP = CostOptions()
"""Timeloop's rules, its transfers between neighbours left out."""
