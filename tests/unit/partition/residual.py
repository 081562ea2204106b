"""A block of convolutions beside what it is added to, as residual networks have them."""

from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph, Value


def convolution(b: GraphBuilder, x: Value, channels: int, size: int = 1, name: str = "conv") -> Value:
    weight = b.constant(channels, x.shape[1], size, size)
    return b.op(
        "Conv", x, weight, shape=(x.shape[0], channels, *x.shape[2:]), pads=(size // 2,) * 4, name=name
    )


def residual() -> tuple[GraphBuilder, Graph]:
    """A stem, and a block of two convolutions beside the stem's result."""
    b = GraphBuilder()
    stem = b.op("Relu", convolution(b, b.input(4, 8, 6, 6), 8, 3))
    inner = b.op("Relu", convolution(b, stem, 8, 3, name="first"))
    outer = convolution(b, inner, 8, 3, name="second")
    return b, b.finish(b.op("Relu", b.op("Add", outer, stem, name="join")))
