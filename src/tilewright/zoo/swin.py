"""Swin Transformer in torchvision's form: attention in windows, shifted in every second block."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import classifier, dense, gelu, layer_norm_node
from tilewright.zoo.network import Size, image_network

_WINDOW = 7
_FEATURES, _DEPTHS, _HEADS = 96, (2, 2, 6, 2), (3, 6, 12, 24)
_EPS = 1e-5
_APART = -100.0  # added to the scores of positions that a shift brings into one window


def _relative_index() -> npt.NDArray[np.int64]:
    """For each pair of positions in a window the row of the bias table."""
    at: npt.NDArray[np.int64] = np.array(list(itertools.product(range(_WINDOW), repeat=2)))
    distance = at[:, None] - at[None] + _WINDOW - 1
    rows: npt.NDArray[np.int64] = distance[..., 0] * (2 * _WINDOW - 1) + distance[..., 1]
    return rows.reshape(-1)


def _shift_mask(rows: int, columns: int, shift: tuple[int, int]) -> npt.NDArray[np.float32]:
    """[windows, 1, positions, positions]: which positions of a window were apart before the shift."""
    regions = np.zeros((rows, columns), np.int64)
    for number, (r, c) in enumerate(itertools.product(range(3), repeat=2)):
        parts = []
        for index, size, s in ((r, rows, shift[0]), (c, columns, shift[1])):
            slices = [(0, -_WINDOW), (-_WINDOW, -s if s else None), (-s if s else size, None)]
            parts.append(slice(*slices[index]))
        regions[tuple(parts)] = number
    windows = regions.reshape(rows // _WINDOW, _WINDOW, columns // _WINDOW, _WINDOW).transpose(0, 2, 1, 3)
    flat = windows.reshape(-1, _WINDOW * _WINDOW)
    return np.where(flat[:, None] != flat[:, :, None], _APART, 0.0).astype(np.float32)[:, None]


def _roll(b: Builder, x: Tensor, shift: tuple[int, int]) -> Tensor:
    """Move rows and columns round the edge, as `torch.roll` is exported."""
    for axis, by in zip((1, 2), shift, strict=True):
        if by % x.shape[axis]:
            cut = by % x.shape[axis]
            parts = [b.slice(x, axis, cut, x.shape[axis]), b.slice(x, axis, 0, cut)]
            x = b.concat(parts, axis=axis, name="roll")
    return x


def windowed_attention(b: Builder, x: Tensor, heads: int, shift: int) -> Tensor:
    """Attention within windows of an image whose channels come last, shifted by some positions."""
    batch, height, width, features = x.shape
    padded = tuple(-(-side // _WINDOW) * _WINDOW for side in (height, width))
    if padded != (height, width):
        x = b.pad(x, (0, 0, 0, 0, 0, padded[0] - height, padded[1] - width, 0))
    rows, columns = padded
    shifts = (shift if rows > _WINDOW else 0, shift if columns > _WINDOW else 0)
    x = _roll(b, x, shifts)
    grid, area = (rows // _WINDOW, columns // _WINDOW), _WINDOW * _WINDOW
    windows = grid[0] * grid[1]
    x = b.reshape(x, (batch, grid[0], _WINDOW, grid[1], _WINDOW, features))
    x = b.reshape(b.transpose(x, (0, 1, 3, 2, 4, 5)), (batch * windows, area, features))
    joint = dense(b, x, 3 * features, name="qkv", gain=math.sqrt(2.0))
    joint = b.reshape(joint, (batch * windows, area, 3, heads, features // heads))
    joint = b.transpose(joint, (2, 0, 3, 1, 4))
    query, key, value = (b.gather(joint, b.constant(i)) for i in range(3))
    query = b.mul(query, (features // heads) ** -0.5)
    scores = b.matmul(query, b.transpose(key, (0, 1, 3, 2)), name="scores")
    table = b.parameter("relative_position_bias_table", ((2 * _WINDOW - 1) ** 2, heads), deviation=0.5)
    bias = b.gather(table, b.buffer("relative_position_index", _relative_index()))
    bias = b.unsqueeze(b.transpose(b.reshape(bias, (area, area, heads)), (2, 0, 1)), 0)
    scores = b.add(scores, bias)
    if any(shifts):
        mask = b.constant(_shift_mask(rows, columns, shifts)[None])
        split = (batch, windows, heads, area, area)
        scores = b.reshape(b.add(b.reshape(scores, split), mask), (batch * windows, heads, area, area))
    y = b.transpose(b.matmul(b.softmax(scores), value, name="context"), (0, 2, 1, 3))
    y = dense(b, b.reshape(y, (batch * windows, area, features)), features, name="proj")
    y = b.reshape(y, (batch, *grid, _WINDOW, _WINDOW, features))
    y = b.reshape(b.transpose(y, (0, 1, 3, 2, 4, 5)), (batch, rows, columns, features))
    y = _roll(b, y, (-shifts[0], -shifts[1]))
    return b.slice(b.slice(y, 1, 0, height), 2, 0, width) if padded != (height, width) else y


def _block(b: Builder, x: Tensor, heads: int, shift: int) -> Tensor:
    y = layer_norm_node(b, x, eps=_EPS, name="norm1")
    with b.scope("attn"):
        y = windowed_attention(b, y, heads, shift)
    x = b.add(x, y)
    y = layer_norm_node(b, x, eps=_EPS, name="norm2")
    with b.scope("mlp"):
        y = dense(b, gelu(b, dense(b, y, 4 * x.shape[-1], name="0"), name="1"), x.shape[-1], name="3")
    return b.add(x, y)


def _merge_patches(b: Builder, x: Tensor) -> Tensor:
    """Four neighbours become one position of twice the channels."""
    odd = [side % 2 for side in x.shape[1:3]]
    if any(odd):
        x = b.pad(x, (0, 0, 0, 0, 0, *odd, 0))
    parts = []
    for column, row in itertools.product(range(2), repeat=2):
        part = b.slice(x, 1, row, x.shape[1], step=2)
        parts.append(b.slice(part, 2, column, x.shape[2], step=2))
    y = layer_norm_node(b, b.concat(parts, axis=3), eps=_EPS, name="norm")
    return dense(b, y, 2 * x.shape[-1], name="reduction", bias=False)


def _swin_t(b: Builder, x: Tensor) -> None:
    with b.scope("features.0"):
        x = b.transpose(b.conv(x, _FEATURES, 4, stride=4, bias=True, name="0"), (0, 2, 3, 1))
        x = layer_norm_node(b, x, eps=_EPS, name="2")
    for stage, (depth, heads) in enumerate(zip(_DEPTHS, _HEADS, strict=True)):
        if stage > 0:
            with b.scope(f"features.{2 * stage}"):
                x = _merge_patches(b, x)
        for index in range(depth):
            with b.scope(f"features.{2 * stage + 1}.{index}"):
                x = _block(b, x, heads, _WINDOW // 2 if index % 2 else 0)
    x = b.transpose(layer_norm_node(b, x, eps=_EPS, name="norm"), (0, 3, 1, 2))
    classifier(b, x, name="head")


NETWORKS = (
    image_network(
        "swin_t",
        "swin",
        "Swin-T: attention in windows of 7 x 7 positions, shifted in every second block",
        "Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted Windows, ICCV 2021",
        _swin_t,
        image=Size(224, smallest=32, multiple=4),
    ),
)
