"""Which operators of ai.onnx.ml have a definition, and what a node of them is by it."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import FunctionProto, NodeProto

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.microsoft.definition import Definition
from tilewright.frontend.onnx.ml import DOMAIN
from tilewright.frontend.onnx.ml.features import FEATURES
from tilewright.frontend.onnx.ml.labels import LABELS
from tilewright.frontend.onnx.ml.linear import LINEAR
from tilewright.frontend.onnx.ml.support_vectors import SUPPORT_VECTORS
from tilewright.frontend.onnx.ml.texts import NUM_KEYS
from tilewright.frontend.onnx.ml.trees import TREES
from tilewright.frontend.onnx.protos import node_label, one_line
from tilewright.ir.graph import Value
from tilewright.text.suggestions import likely

_DEFINITIONS = {**FEATURES, **LABELS, **LINEAR, **SUPPORT_VECTORS, **TREES}
_MAPS = frozenset({"CastMap", "DictVectorizer", "ZipMap"})


def definition_of(node: NodeProto, inputs: Sequence[Value | None]) -> FunctionProto:
    """What a node of ai.onnx.ml is in terms of standard operators.

    Raises:
        UnsupportedOp: the operator is not known, or not with these attributes.
        ModelRejected: the inputs do not fit the operator.
    """
    require_known(node)
    definition = Definition(node, inputs)
    try:
        return definition.function(_DEFINITIONS[node.op_type](definition))
    except (ArithmeticError, LookupError, ValueError) as error:
        # Lists that do not fit each other, where a definition did not say so itself.
        raise ModelRejected(
            f"node {node_label(node)} does not take its attributes ({one_line(error)}); export the model "
            "again."
        ) from error


def require_known(node: NodeProto) -> None:
    """Refuse a node of ai.onnx.ml that has no definition, whatever its inputs are.

    Raises:
        UnsupportedOp: it has none.
    """
    if node.op_type in _MAPS and all(attribute.name != NUM_KEYS for attribute in node.attribute):
        raise UnsupportedOp(
            f"node {node_label(node)}: maps are taken and given by whole models alone; export the model with "
            f"{node.op_type} at its end, or with tensors."
        )
    if node.op_type not in _DEFINITIONS:
        guess = likely(node.op_type, tuple(_DEFINITIONS))
        raise UnsupportedOp(
            f"node {node_label(node)}: {DOMAIN} {node.op_type} is not known"
            + (f"; {guess}? Else export" if guess else "; export")
            + " the model with standard operators."
        )
