"""Figure 10: a schedule drawn, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.reproduce.ios.runs import PlannedStage
from tilewright.text.printable import html_text

_STYLE = (
    ".stages{display:inline-block;vertical-align:top;margin:1em 2em 1em 0;font-size:12px}"
    ".stage{border-top:1px dashed #999;padding:.4em 0}.groups{display:flex;gap:1em;margin:.4em 0}"
    ".groups>div>div{width:10em;padding:.3em;margin-bottom:4px;border:1px solid #8888;background:#3366aa33;"
    "text-align:center}.groups>.merged>div{margin-bottom:-1px;background:#cc663333}"
)


def stages_drawn(title: str, names: Sequence[str], stages: Sequence[PlannedStage]) -> str:
    """Stages from top to bottom, groups beside each other, operators of a group below each other, as HTML.

    Operators that merge are one box, for each a line.
    """
    rows = []
    for number, stage in enumerate(stages, 1):
        merged = ", merged" if stage.merges else ""
        groups = "".join(_group(column, names, stage.merges) for column in _columns(stage))
        rows.append(
            f'<div class="stage">stage {number}: {stage.time_ns / 1e3:.1f} us{merged}'
            f'<div class="groups">{groups}</div></div>'
        )
    return f'<style>{_STYLE}</style><div class="drawn stages"><b>{html_text(title)}</b>{"".join(rows)}</div>'


def _columns(stage: PlannedStage) -> Sequence[tuple[int, ...]]:
    if stage.merges:
        return (tuple(i for group in stage.groups for i in group),)
    return stage.groups


def _group(column: Sequence[int], names: Sequence[str], merges: bool) -> str:
    boxes = "".join(f"<div>{html_text(names[operator])}</div>" for operator in column)
    return f'<div class="{"merged" if merges else "group"}">{boxes}</div>'
