"""A Slice of a Slice is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.movement import kept_by_slice
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Rule, RulePass
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Composed:
    source: Value
    kept: tuple[range, ...]


def _match(editor: Editor, node: Node) -> _Composed | None:
    inner = made_by(node.require(0), "Slice")
    if inner is None or not all(_is_known(editor, each) for each in (inner, node)):
        return None
    kept = [
        of_inner[of_outer.start : of_outer.stop : of_outer.step]
        for of_inner, of_outer in zip(kept_by_slice(inner), kept_by_slice(node), strict=True)
        if of_outer.step > 0 and of_inner.step > 0
    ]
    is_complete = len(kept) == len(node.output.shape) and all(kept)
    return _Composed(inner.require(0), tuple(kept)) if is_complete else None


def _is_known(editor: Editor, node: Node) -> bool:
    return all(editor.is_constant(value) for value in node.inputs[1:] if value is not None)


def _build(editor: Editor, node: Node, found: _Composed) -> str:
    shape = found.source.shape
    cut = {a: r for a, r in enumerate(found.kept) if r != range(shape[a])}

    def integers(numbers: Sequence[int], stem: str) -> Value:
        return editor.constant(np.array(numbers, np.int64), DType.INT64, f"{node.output.name}.{stem}")

    bounds = [
        integers([r.start for r in cut.values()], "starts"),
        integers([r.stop for r in cut.values()], "ends"),
        integers(list(cut), "axes"),
        integers([r.step for r in cut.values()], "steps"),
    ]
    editor.become(node, "Slice", [found.source, *bounds], since=10)
    return f"slices {found.source.name} at once"


class MergeSlices(RulePass):
    """A Slice of a Slice reads the first operand, by the indices of both.

    Every second row and then every second column of an image are read at once, where they lie.
    """

    name = "merge-slices"
    rules = (Rule(("Slice",), _match, _build),)
