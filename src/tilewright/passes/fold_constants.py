"""Nodes whose operands are all known are computed now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.arrays import Array
from tilewright.errors import InputError, ModelRejected, UnsupportedOp
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.graph import Graph, Node, SubgraphAttribute
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Opaque
from tilewright.ir.ops.block_floats import BLOCK_FLOATS, block_weights
from tilewright.ir.ops.host import RANDOM
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, describe, has_effect, host_work
from tilewright.ir.work import find_folding_excess
from tilewright.passes.base import PassResult, Remark
from tilewright.passes.edit import Editor
from tilewright.planning import option
from tilewright.progress import checkpoint
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Computes constant nodes with the reference semantics: the bits that a run by the interpreter gives.

    Not in a wider type: where a result is an integer or a truth value, a tie or a comparison would then fall
    differently than it does for the same numbers fed to a run.

    A result may take `max_bytes`, or twice the bytes it is computed from if that is more: folding must not
    make a small model large. Random operators and control flow stay.
    """

    max_bytes: int = option(16 << 20, "Most bytes of a result that is computed while compiling.")
    name: ClassVar[str] = "fold-constants"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place. Producers come first, so that one walk folds whole chains."""
        editor = Editor(graph, remembers=False)
        changes = 0
        remarks: list[Remark] = []
        for node in graph.nodes:
            checkpoint()
            if not _is_constant(editor, node):
                continue
            reason = self._why_not(editor, node) or _fold(editor, node)
            changes += reason is None
            remarks.append(Remark(node.name, "folded" if reason is None else f"kept: {reason}"))
        return PassResult(changes, tuple(remarks))

    def _why_not(self, editor: Editor, node: Node) -> str | None:
        if node.op_type in RANDOM and not node.domain:
            return "its result is random"
        if _is_block_floats(node):
            return None
        if any(isinstance(a, SubgraphAttribute) for a in node.attributes.values()):
            return "it is control flow"
        given = sum(v.size_bytes for v in dict.fromkeys(node.operands()))
        made = sum(v.size_bytes for v in node.results())
        if made > max(self.max_bytes, 2 * given):
            return f"its result takes {made} bytes, its operands {given}"
        nests = describe(node)
        if isinstance(nests, Opaque):
            data = [None if v is None else editor.data(v) for v in node.inputs]
            return find_folding_excess(node, host_work(node, data))
        return find_folding_excess(node, nests)


def _is_constant(editor: Editor, node: Node) -> bool:
    return all(editor.is_constant(v) for v in node.operands())


def _is_block_floats(node: Node) -> bool:
    """Whether a node's result takes no more memory than its operands: it keeps their numbers."""
    (source, *_), is_ours = (*node.inputs, None), node.domain == INTERNAL_DOMAIN
    is_turned = node.op_type == "Transpose" and isinstance(source and source.stored, BlockWeights)
    return (is_ours and node.op_type == BLOCK_FLOATS) or (is_turned and _turns(node))


def _turns(node: Node) -> bool:
    return node.ints_attr("perm", (1, 0)) == (1, 0)


def _results(node: Node) -> Sequence[Array | BlockWeights | None]:
    """What a node of constants gives."""
    if not _is_block_floats(node):
        return run_node(node, [None if v is None else v.data for v in node.inputs])
    stored = node.require(0).stored
    if isinstance(stored, BlockWeights):
        return [stored.transposed]
    return [block_weights(node, [None if v is None else v.data for v in node.inputs])]


def _fold(editor: Editor, node: Node) -> str | None:
    """Replace a node's results by constants, or say why not."""
    try:
        results = _results(node)
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
