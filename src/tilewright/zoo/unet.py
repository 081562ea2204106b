"""U-Net with padded convolutions and batch normalisation, as most implementations in PyTorch have it."""

from __future__ import annotations

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import conv_bn
from tilewright.zoo.network import Size, image_network

_WIDTHS = (64, 128, 256, 512, 1024)
_CLASSES = 2


def _double_conv(b: Builder, x: Tensor, channels: int) -> Tensor:
    with b.scope("double_conv"):
        x = b.relu(conv_bn(b, x, channels, 3, padding=1, names=("0", "1")), name="2")
        return b.relu(conv_bn(b, x, channels, 3, padding=1, names=("3", "4")), name="5")


def _unet(b: Builder, x: Tensor) -> None:
    with b.scope("inc"):
        x = _double_conv(b, x, _WIDTHS[0])
    kept = [x]
    for level, channels in enumerate(_WIDTHS[1:], start=1):
        with b.scope(f"down{level}"):
            x = _double_conv(b, b.max_pool(x, 2, stride=2), channels)
            kept.append(x)
    kept.pop()
    for level, channels in enumerate(reversed(_WIDTHS[:-1]), start=1):
        with b.scope(f"up{level}"):
            x = b.conv_transpose(x, channels, 2, name="up")
            x = _double_conv(b, b.concat([kept.pop(), x]), channels)
    b.output(b.conv(x, _CLASSES, 1, bias=True, name="outc.conv"), "logits")


NETWORKS = (
    image_network(
        "unet",
        "unet",
        "U-Net of 64 to 1024 channels, enlarged by transposed convolutions; two classes for each pixel",
        "Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015",
        _unet,
        image=Size(256, smallest=32, multiple=16),
    ),
)
