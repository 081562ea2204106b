"""The block graphs of IOS's four networks, as data: which units there are and what each reads.

A unit is what IOS schedules and counts as one operator: a convolution with its activation, a pool, a join of
values, or a compound (ReLU, depthwise, pointwise) that always runs as one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tilewright.errors import UsageError

NAMES = ("ios_inception_v3", "ios_nasnet_a", "ios_randwire", "ios_squeezenet")

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """Channels [begin, end) of the value that a unit or the graph input makes."""

    producer: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One operator inside a unit. `kind` is conv, relu, max_pool, avg_pool or global_avg_pool."""

    id: str
    kind: str
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    groups: int = 1
    out_channels: int = 0
    relu: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """One schedulable unit. The pieces of a term are added, then the terms are joined on the channel axis.

    A unit without steps only joins. `macs` and `out_shape` (channels, height, width) hold at the published
    image size and batch 1.
    """

    id: str
    terms: tuple[tuple[Piece, ...], ...]
    steps: tuple[BlockStep, ...]
    out_shape: tuple[int, int, int]
    macs: int


@dataclass(frozen=True, slots=True)
class ZooBlock:
    """Units in topological order; `edges` are the dependencies between them, the last unit is the exit."""

    label: str
    units: tuple[Unit, ...]
    edges: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class BlockNetwork:
    """Blocks that run one after the other. `input_id` names the graph input among the producers."""

    name: str
    image: int
    num_units: int
    macs: int
    input_id: str
    blocks: tuple[ZooBlock, ...]


@cache
def load_blocks(name: str) -> BlockNetwork:
    """The block graph of one of `NAMES`.

    Raises:
        UsageError: any other name.

    >>> load_blocks("ios_squeezenet").num_units
    50
    """
    if name not in NAMES:
        raise UsageError(f"No block data for {name!r}; there are {', '.join(NAMES)}.")
    text = resources.files("tilewright.zoo").joinpath("data", f"{name}.json").read_text("utf-8")
    data = json.loads(text)
    blocks = tuple(
        ZooBlock(
            label=block["label"],
            units=tuple(_unit(node) for node in block["nodes"]),
            edges=tuple((source, target) for source, target in block["edges"]),
        )
        for block in data["blocks"]
    )
    (first_input,) = data["blocks"][0]["external_inputs"]
    return BlockNetwork(name, data["input_shape_chw"][1], data["n_units"], data["macs"], first_input, blocks)


def _unit(node: dict[str, Any]) -> Unit:
    inner = node.get("inner", [node])
    channels, height, width = node["out_shape"]
    return Unit(
        id=node["id"],
        terms=tuple(tuple(Piece(*piece) for piece in term) for term in node["inputs"]),
        steps=tuple(_step(step) for step in inner if step["op"] != "concat_add"),
        out_shape=(channels, height, width),
        macs=node["macs"],
    )


def _step(step: dict[str, Any]) -> BlockStep:
    if step["op"] == "relu":
        return BlockStep(step["id"], "relu")
    kernel, stride, padding = (_pair(step[key]) for key in ("kernel", "stride", "padding"))
    if step["op"] == "pool":
        return BlockStep(step["id"], f"{step['mode']}_pool", kernel, stride, padding)
    channels = step["out_shape"][0]
    relu = step["act"] == "relu"
    return BlockStep(step["id"], step["op"], kernel, stride, padding, step["groups"], channels, relu)


def _pair(values: list[int]) -> Pair:
    height, width = values
    return height, width
