"""Operation classes follow from loop nests."""

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Value
from tilewright.ir.operation_class import OperationClass


def operator(b: GraphBuilder, name: str, x: Value) -> Value:
    match name:
        case "Conv":
            return b.conv(x, 4)
        case "MaxPool":
            return b.op("MaxPool", x, shape=x.shape, kernel_shape=(1, 1))
        case "Transpose":
            return b.op("Transpose", x, shape=(x.shape[1], x.shape[0], *x.shape[2:]), perm=(1, 0, 2, 3))
        case _:
            return b.op(name, x)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Conv", OperationClass.COMPLEX),
        ("Softmax", OperationClass.REDUCTION),
        ("Transpose", OperationClass.INJECTIVE),
        ("Relu", OperationClass.POINTWISE),
    ],
)
def test_the_class_of_an_operator(name: str, expected: OperationClass) -> None:
    b = GraphBuilder()
    result = operator(b, name, b.input(2, 4, 6, 6))
    b.finish(result)
    assert result.producer is not None
    assert OperationClass.of(result.producer) is expected
