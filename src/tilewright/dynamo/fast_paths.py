"""Operators that torch's modules take instead of their parts where no gradients are recorded, in operators
that torch exports."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_MASK = 18
"""Place of the mask among the arguments of an encoder's layer."""


def take_apart(graph: Any) -> None:
    """Replace the layers of encoders in a graph by `encoder_layer`, but for those with masks."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target is not torch._transformer_encoder_layer_fwd:
            continue
        if not node.kwargs and not any(node.args[_MASK:]):
            node.target, node.args = encoder_layer, node.args[:_MASK]


def encoder_layer(
    x: Any,
    num_features: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    uses_gelu: bool,
    norm_first: bool,
    epsilon: float,
    *parameters: Any,
) -> Any:
    """A layer of [batch, length, features]; `parameters`: weight and bias of two norms and two products."""
    norms, products = (parameters[0:2], parameters[2:4]), (parameters[4:6], parameters[6:8])

    def norm(number: int, x: Any) -> Any:
        return functional.layer_norm(x, (num_features,), *norms[number], epsilon)

    def attend(x: Any) -> Any:
        batch, length, _ = x.shape
        factors = functional.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, num_heads, -1)
        heads = functional.scaled_dot_product_attention(*factors.permute(2, 0, 3, 1, 4).unbind())
        return functional.linear(heads.transpose(1, 2).reshape(batch, length, -1), out_weight, out_bias)

    def feed(x: Any) -> Any:
        hidden = functional.linear(x, *products[0])
        hidden = functional.gelu(hidden) if uses_gelu else functional.relu(hidden)
        return functional.linear(hidden, *products[1])

    if norm_first:
        x = x + attend(norm(0, x))
        return x + feed(norm(1, x))
    x = norm(0, x + attend(x))
    return norm(1, x + feed(x))
