"""Operation classes (Roesch et al. 2018: Relay's fusion patterns), derived from loop nests."""

from __future__ import annotations

from enum import Enum, auto

from tilewright.ir.derive import is_complex, is_injective, is_pointwise
from tilewright.ir.graph import Node
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe


class OperationClass(Enum):
    """What an operator can be fused with, by how its results follow from its operands."""

    OPAQUE = auto()
    COMPLEX = auto()  # convolution, product
    REDUCTION = auto()  # pooling, reduction, softmax, normalisation: anything else that combines elements
    INJECTIVE = auto()  # moves elements
    POINTWISE = auto()  # computes each element from the elements at its own place

    @classmethod
    def of(cls, node: Node) -> OperationClass:
        """The class of a node, derived from its loop nests."""
        return node.remembered(_class_of)


def _class_of(node: Node) -> OperationClass:
    if isinstance(describe(node), Opaque):
        return OperationClass.OPAQUE
    if is_pointwise(node):
        return OperationClass.POINTWISE
    if is_injective(node):
        return OperationClass.INJECTIVE
    return OperationClass.COMPLEX if is_complex(node) else OperationClass.REDUCTION
