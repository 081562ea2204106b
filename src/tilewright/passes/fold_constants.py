"""Nodes whose operands are all known are computed now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.errors import InputError, ModelRejected, UnsupportedOp
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Opaque
from tilewright.ir.ops.registry import describe, has_effect
from tilewright.ir.work import find_folding_excess
from tilewright.passes.base import PassResult, Remark
from tilewright.passes.edit import Editor
from tilewright.progress import checkpoint

Array = np.ndarray[Any, Any]

_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
# Operators that only move elements give the same bits in any type, so they need no wider one.
_MOVEMENT = frozenset(
    (
        *("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat", "Split"),
        *("Gather", "GatherElements", "GatherND", "Expand", "Tile", "Pad", "Constant", "ConstantOfShape"),
        *("DepthToSpace", "SpaceToDepth", "ScatterElements", "ScatterND", "Where", "Trilu", "Shape", "Size"),
    )
)


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Computes constant nodes with the reference semantics: in float64, rounded once to the result's type.

    A result may take `max_bytes`, or twice the bytes it is computed from if that is more: folding must not
    make a small model large. Random operators and control flow stay.
    """

    max_bytes: int = 16 << 20
    name: ClassVar[str] = "fold-constants"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place. Producers come first, so that one walk folds whole chains."""
        editor = Editor(graph)
        changes = 0
        remarks: list[Remark] = []
        for node in graph.nodes:
            checkpoint()
            if not _is_constant(editor, node):
                continue
            reason = self._why_not(node) or _fold(editor, node)
            changes += reason is None
            remarks.append(Remark(node.name, "folded" if reason is None else f"kept: {reason}"))
        return PassResult(changes, tuple(remarks))

    def _why_not(self, node: Node) -> str | None:
        if node.op_type in _RANDOM and not node.domain:
            return "its result is random"
        if any(isinstance(a, SubgraphAttribute) for a in node.attributes.values()):
            return "it is control flow"
        given = sum(v.size_bytes for v in dict.fromkeys(node.operands()))
        made = sum(v.size_bytes for v in node.results())
        if made > max(self.max_bytes, 2 * given):
            return f"its result takes {made} bytes, its operands {given}"
        nests = describe(node)
        return find_folding_excess(node, None if isinstance(nests, Opaque) else nests)


def _is_constant(editor: Editor, node: Node) -> bool:
    return all(editor.data(v) is not None for v in node.operands())


def _fold(editor: Editor, node: Node) -> str | None:
    """Replace a node's results by constants, or say why not."""
    try:
        results = _computed(node)
    except UnsupportedOp as error:
        return str(error)
    except InputError as error:
        raise ModelRejected(f"on its constant inputs, {error}") from error
    folded = True
    for value, array in zip(node.outputs, results, strict=True):
        if value is None or not (value.users or editor.is_output(value)):
            continue
        if array is None or array.shape != value.shape:
            return f"its result has the shape {None if array is None else list(array.shape)}"
        constant = editor.constant(array, value.dtype, value.name)
        was_output = editor.is_output(value)
        if not editor.replace(value, constant):
            folded = False
        elif not was_output:
            # The value is gone, so that the constant can have its name; an output's it has already.
            constant.name, value.name = value.name, constant.name
    if has_effect(node):
        editor.graph.remove(node)  # what it checks of constants holds for every run
    editor.discard([node])
    return None if folded else "its result is read by name"


def _computed(node: Node) -> tuple[Array | None, ...]:
    arrays = [None if v is None else v.data for v in node.inputs]
    if node.op_type in _MOVEMENT or not any(v.dtype.is_float for v in (*node.operands(), *node.results())):
        return run_node(node, arrays)
    wide = [
        a.astype(np.float64) if a is not None and v is not None and v.dtype.is_float else a
        for a, v in zip(arrays, node.inputs, strict=True)
    ]
    results = run_node(node, wide, dtype=DType.FLOAT64)
    with np.errstate(all="ignore"):
        return tuple(
            None if a is None or v is None else np.asarray(a).astype(v.dtype.numpy, copy=False)
            for a, v in zip(results, node.outputs, strict=True)
        )
