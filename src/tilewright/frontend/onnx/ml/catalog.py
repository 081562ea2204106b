"""Which operators of ai.onnx.ml have a definition, and why others have none."""

from __future__ import annotations

from onnx import NodeProto

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx.ml.features import FEATURES
from tilewright.frontend.onnx.ml.labels import LABELS
from tilewright.frontend.onnx.ml.linear import LINEAR
from tilewright.frontend.onnx.ml.support_vectors import SUPPORT_VECTORS
from tilewright.frontend.onnx.ml.texts import NUM_KEYS
from tilewright.frontend.onnx.ml.trees import TREES
from tilewright.frontend.onnx.protos import node_label

DEFINITIONS = {**FEATURES, **LABELS, **LINEAR, **SUPPORT_VECTORS, **TREES}
NAMES = sorted(DEFINITIONS)
_MAPS = frozenset({"CastMap", "DictVectorizer", "ZipMap"})


def refuse(node: NodeProto) -> None:
    """Refuse a map within a model.

    Raises:
        UnsupportedOp: it is one.
    """
    if node.op_type in _MAPS and all(attribute.name != NUM_KEYS for attribute in node.attribute):
        raise UnsupportedOp(
            f"node {node_label(node)}: maps are taken and given by whole models alone; export the model with "
            f"{node.op_type} at its end, or with tensors."
        )
