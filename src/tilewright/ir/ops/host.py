"""Operators that run whole, on the host, and how much they may ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.arrays import Array
from tilewright.ir.graph import Node, SubgraphAttribute
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.build import choice_attr, require, require_rank
from tilewright.ir.ops.registry import operator
from tilewright.ir.work import MAX_COMPILED_LOOP_STEPS, HostWork

_REASONS = {
    "Bernoulli": "it is random",
    "BitCast": "it reinterprets bits",
    "If": "control flow, whose branches are compiled",
    "RandomNormal": "it is random",
    "RandomNormalLike": "it is random",
    "RandomUniform": "it is random",
    "RandomUniformLike": "it is random",
}
RANDOM = frozenset({"Multinomial", *(name for name, reason in _REASONS.items() if reason == "it is random")})
"""Operators that draw numbers."""


@operator(*_REASONS)
def opaque(node: Node) -> Description:
    """Operators that ask no more than their operands and results are."""
    return Opaque(f"{node.op_type}: {_REASONS[node.op_type]}")


@operator("ImageDecoder")
def image_decoder(node: Node) -> Description:
    """Pixels of a picture as it is in a file."""
    choice_attr(node, "pixel_format", ("RGB", "BGR", "Grayscale"), "RGB")
    return Opaque("ImageDecoder: it decodes a file format")


# Loops -----------------------------------------------------------------------------------------------


@operator("Loop")
def loop(node: Node) -> Description:
    """Control flow. What is stacked has one element of its first axis for each step."""
    num_states = len(node.inputs) - 2
    for value in node.outputs[max(num_states, 0) :]:
        _require_steps(node, 0 if value is None or not value.shape else value.shape[0])
    return Opaque("Loop: control flow, whose body is compiled")


@operator("Scan")
def scan(node: Node) -> Description:
    """Control flow, as many steps as the scanned inputs have."""
    num_scanned = node.int_attr("num_scan_inputs", 1)
    axes = node.ints_attr("scan_input_axes", [0] * num_scanned) or [0]
    if isinstance(node.attributes.get("body"), SubgraphAttribute) and 1 <= num_scanned <= len(node.inputs):
        _require_steps(node, node.require(len(node.inputs) - num_scanned).shape[axes[0]])
    return Opaque("Scan: control flow, whose body is compiled")


def _require_steps(node: Node, num_steps: int) -> None:
    require(
        node,
        num_steps <= MAX_COMPILED_LOOP_STEPS,
        f"it takes {num_steps} steps, more than the {MAX_COMPILED_LOOP_STEPS} (MAX_COMPILED_LOOP_STEPS) "
        "that a loop may take",
    )


# Sizes that are data ---------------------------------------------------------------------------------


def _multinomial_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    return HostWork(elements=node.require(0).shape[0] * max(node.int_attr("sample_size", 1), 0))


@operator("Multinomial", host_work=_multinomial_work)
def multinomial(node: Node) -> Description:
    """Random numbers."""
    require_rank(node, 0, 2, 2)
    return Opaque("Multinomial: it is random")


# Loops of a reference --------------------------------------------------------------------------------


def _col2im_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """An image for each channel; each element of the columns is added by itself."""
    columns, (image, block) = node.require(0).shape, data[1:3]
    if image is None or block is None:
        return HostWork(steps=prod(columns))
    num_images = columns[0] * columns[1] // max(prod(int(e) for e in block.reshape(-1)), 1)
    num_pixels = prod(max(int(e), 0) for e in image.reshape(-1))
    return HostWork(elements=(num_images + 1) * num_pixels, steps=prod(columns))


@operator("Col2Im", host_work=_col2im_work)
def col2im(node: Node) -> Description:
    """Sums of blocks that overlap."""
    require_rank(node, 0, 3, 3)
    return Opaque("Col2Im: overlapping blocks add into each other")


def _determinant_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """A factorisation takes steps like the cube of an extent, a thousand for an interpreted one."""
    shape = node.require(0).shape
    return HostWork(steps=prod(shape) * shape[-1] >> 10)


@operator("Det", host_work=_determinant_work)
def determinant(node: Node) -> Description:
    """Determinants of square matrices."""
    shape = require_rank(node, 0, 2)
    require(node, shape[-1] == shape[-2], f"its matrices are {shape[-2]}x{shape[-1]}, not square")
    return Opaque("Det: a determinant is a factorisation")


def _ngram_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """All positions for each distance between the items of a sequence; a result for each row."""
    shape = node.require(0).shape
    num_items = shape[-1] if shape else 1
    num_rows = shape[0] if len(shape) > 1 else 1
    num_distances = max(node.int_attr("max_skip_count", 0), 0) + 1
    longest = min(max(node.int_attr("max_gram_length", 1), 0), num_items)
    columns = node.ints_attr("ngram_indexes", ()) or (0,)
    steps = num_rows * num_distances * (1 + num_items * longest)
    return HostWork(elements=num_rows * (max(columns) + 1), steps=steps)


@operator("TfIdfVectorizer", host_work=_ngram_work)
def count_ngrams(node: Node) -> Description:
    """Counts of the sequences of a pool."""
    require_rank(node, 0, 0, 2)
    choice_attr(node, "mode", ("TF", "IDF", "TFIDF"), "TF")
    pool = node.attributes.get("pool_int64s") or node.attributes.get("pool_strings") or ()
    size = len(pool) if isinstance(pool, tuple) else 0
    starts = tuple(node.ints_attr("ngram_counts", ()) or ())
    require(
        node,
        list(starts) == sorted(starts) and (not starts or 0 <= starts[0] <= starts[-1] <= size),
        f"ngram_counts does not rise from 0 to {size}, the items of its pool",
    )
    return Opaque("TfIdfVectorizer: it looks sequences up in a dictionary")
