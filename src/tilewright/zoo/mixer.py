"""MLP-Mixer in timm's form: linear layers over patches, then over channels."""

from __future__ import annotations

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import dense, gelu, layer_norm_node
from tilewright.zoo.network import Size, image_network

_PATCH, _FEATURES, _LAYERS = 16, 768, 12
_EPS = 1e-6


def _mlp(b: Builder, x: Tensor, hidden: int, name: str) -> Tensor:
    with b.scope(name):
        y = gelu(b, dense(b, x, hidden, name="fc1"), name="act")
        return dense(b, y, x.shape[-1], name="fc2")


def _block(b: Builder, x: Tensor) -> Tensor:
    y = b.transpose(layer_norm_node(b, x, eps=_EPS, name="norm1"), (0, 2, 1))
    y = b.transpose(_mlp(b, y, _FEATURES // 2, "mlp_tokens"), (0, 2, 1))
    x = b.add(x, y)
    y = layer_norm_node(b, x, eps=_EPS, name="norm2")
    return b.add(x, _mlp(b, y, 4 * _FEATURES, "mlp_channels"))


def _mixer_b16(b: Builder, x: Tensor) -> None:
    x = b.conv(x, _FEATURES, _PATCH, stride=_PATCH, bias=True, name="stem.proj")
    batch, _, rows, columns = x.shape
    x = b.transpose(b.reshape(x, (batch, _FEATURES, rows * columns)), (0, 2, 1))
    for layer in range(_LAYERS):
        with b.scope(f"blocks.{layer}"):
            x = _block(b, x)
    x = b.reduce_mean(layer_norm_node(b, x, eps=_EPS, name="norm"), [1], keepdims=False)
    b.output(b.gemm(x, 1000, name="head"), "logits")


NETWORKS = (
    image_network(
        "mlp_mixer_b16",
        "mixer",
        "MLP-Mixer, base, patches of 16 x 16; the layers over patches follow the image size",
        "Tolstikhin et al., MLP-Mixer: An all-MLP Architecture for Vision, NeurIPS 2021",
        _mixer_b16,
        image=Size(224, smallest=32, multiple=16),
    ),
)
