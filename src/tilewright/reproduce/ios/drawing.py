"""Figure 10: a schedule drawn, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.printable import html_text
from tilewright.reproduce.ios.runs import PlannedStage

_BOX_WIDTH, _BOX_HEIGHT, _GAP = 112, 26, 12
_STAGE_TOP = 26
_COLOURS = ("#dde8f7", "#f7e3d4")


def stages_drawn(title: str, names: Sequence[str], stages: Sequence[PlannedStage]) -> str:
    """Stages from top to bottom, groups beside each other, operators of a group below each other.

    Operators that merge are one box, for each a line.
    """
    width = max((len(_columns(stage)) for stage in stages), default=1) * (_BOX_WIDTH + _GAP) + 2 * _GAP
    parts: list[str] = []
    top = 28
    for number, stage in enumerate(stages):
        columns = _columns(stage)
        height = _STAGE_TOP + max(map(len, columns)) * (_BOX_HEIGHT + 4) + _GAP
        parts.append(
            f'<line x1="0" y1="{top}" x2="{width}" y2="{top}" stroke="#999" stroke-dasharray="6 4"/>'
            f'<text x="4" y="{top + 16}">stage {number + 1}: {stage.time_ns / 1e3:.1f} us'
            f"{', merged' if stage.merges else ''}</text>"
        )
        for place, column in enumerate(columns):
            parts += _boxes(column, names, _GAP + place * (_BOX_WIDTH + _GAP), top + _STAGE_TOP, stage.merges)
        top += height
    return (
        f'<svg viewBox="0 0 {max(width, 320)} {top + 8}" width="{max(width, 320)}" height="{top + 8}">'
        f'<text x="4" y="16" font-weight="bold">{html_text(title)}</text>{"".join(parts)}</svg>'
    )


def _columns(stage: PlannedStage) -> Sequence[tuple[int, ...]]:
    if stage.merges:
        return (tuple(i for group in stage.groups for i in group),)
    return stage.groups


def _boxes(column: Sequence[int], names: Sequence[str], left: int, top: int, merges: bool) -> list[str]:
    boxes = []
    for place, operator in enumerate(column):
        y = top + place * (_BOX_HEIGHT + (0 if merges else 4))
        boxes.append(
            f'<rect x="{left}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" '
            f'fill="{_COLOURS[merges]}" stroke="#777"/>'
            f'<text x="{left + _BOX_WIDTH / 2}" y="{y + 17}" text-anchor="middle">'
            f"{html_text(names[operator])}</text>"
        )
    return boxes
