"""ConvNeXt in torchvision's form: depthwise 7 x 7 convolutions, then linear layers on the last axis.

Its graph as each of PyTorch's exporters writes it: traced, normalisation in nine nodes and GELU divides; by
`torch.export`, normalisation is one node and GELU multiplies by the reciprocal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import dense, gelu, layer_norm, layer_norm_node, scaled_gelu
from tilewright.zoo.network import Size, image_network

_EPS = 1e-6
_BRANCH_SCALE = 0.5  # of the learned scale per channel that ends each branch


class Norm(Protocol):
    """Layer normalisation over the last axis."""

    def __call__(self, b: Builder, x: Tensor, *, eps: float, name: str) -> Tensor:
        """The normalised value."""


class Activation(Protocol):
    """An activation."""

    def __call__(self, b: Builder, x: Tensor, *, name: str) -> Tensor:
        """The activated value."""


@dataclass(frozen=True, slots=True)
class _Exporter:
    norm: Norm
    gelu: Activation


def _norm_channels(b: Builder, x: Tensor, name: str, exporter: _Exporter) -> Tensor:
    """Layer normalisation over axis 1 of an NCHW value."""
    with b.scope(name):
        y = exporter.norm(b, b.transpose(x, (0, 2, 3, 1)), eps=_EPS, name="norm")
        return b.transpose(y, (0, 3, 1, 2))


def _block(b: Builder, x: Tensor, exporter: _Exporter) -> Tensor:
    channels = x.channels
    y = b.conv(x, channels, 7, padding=3, groups=channels, bias=True, name="block.0")
    y = exporter.norm(b, b.transpose(y, (0, 2, 3, 1)), eps=_EPS, name="block.2")
    y = exporter.gelu(b, dense(b, y, 4 * channels, name="block.3"), name="block.4")
    y = b.transpose(dense(b, y, channels, name="block.5"), (0, 3, 1, 2))
    scale = b.parameter("layer_scale", (channels, 1, 1), mean=_BRANCH_SCALE, deviation=0.1 * _BRANCH_SCALE)
    return b.add(b.mul(scale, y), x)


def _convnext_tiny(b: Builder, x: Tensor, *, exporter: _Exporter) -> None:
    x = b.conv(x, 96, 4, stride=4, bias=True, name="features.0.0")
    x = _norm_channels(b, x, "features.0.1", exporter)
    for stage, (channels, depth) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3))):
        if stage > 0:
            x = _norm_channels(b, x, f"features.{2 * stage}.0", exporter)
            x = b.conv(x, channels, 2, stride=2, bias=True, name=f"features.{2 * stage}.1")
        for index in range(depth):
            with b.scope(f"features.{2 * stage + 1}.{index}"):
                x = _block(b, x, exporter)
    x = b.flatten(_norm_channels(b, b.global_avg_pool(x), "classifier.0", exporter))
    b.output(b.gemm(x, 1000, name="classifier.2"), "logits")


NETWORKS = (
    image_network(
        "convnext_tiny",
        "convnext",
        "ConvNeXt-T: channel-last layer normalisation and GELU between convolutions",
        "Liu et al., A ConvNet for the 2020s, CVPR 2022",
        partial(_convnext_tiny, exporter=_Exporter(layer_norm, gelu)),
        image=Size(224, smallest=32),
    ),
    image_network(
        "convnext_tiny_export",
        "convnext",
        "ConvNeXt-T as torch.export writes it: layer normalisation is one node",
        "Liu et al., A ConvNet for the 2020s, CVPR 2022",
        partial(_convnext_tiny, exporter=_Exporter(layer_norm_node, scaled_gelu)),
        image=Size(224, smallest=32),
    ),
)
