"""GPT-2 small: a decoder with causal attention over the whole sequence and a head tied to the embeddings."""

from __future__ import annotations

import math

import numpy as np

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import dense, layer_norm, tanh_gelu
from tilewright.zoo.network import Fill, InputSpec, Network, Settings, Size

_VOCABULARY = 50257
_MAX_SEQUENCE = 1024
_LAYERS, _HEADS, _FEATURES = 12, 12, 768
_EPS = 1e-5


def _inputs(settings: Settings) -> tuple[InputSpec, ...]:
    return (InputSpec("input_ids", (settings.batch, settings.sequence), Fill.INDEX, _VOCABULARY),)


def _causal_attention(b: Builder, x: Tensor, visible: Tensor) -> Tensor:
    batch, sequence, features = x.shape
    width = features // _HEADS
    split = (batch, sequence, _HEADS, width)
    joint = dense(b, x, 3 * features, name="c_attn", gain=math.sqrt(2.0))
    query, key, value = b.split(joint, (features,) * 3, axis=2)
    query = b.transpose(b.reshape(query, split), (0, 2, 1, 3))
    key = b.transpose(b.reshape(key, split), (0, 2, 3, 1))
    value = b.transpose(b.reshape(value, split), (0, 2, 1, 3))
    scores = b.binary("Div", b.matmul(query, key, name="scores"), math.sqrt(width))
    lowest = b.constant(float(np.finfo(np.float32).min))
    scores = b.node("Where", [visible, scores, lowest], scores.shape, name="mask", dtype="float32")
    context = b.transpose(b.matmul(b.softmax(scores), value, name="context"), (0, 2, 1, 3))
    return dense(b, b.reshape(context, x.shape), features, name="c_proj")


def _block(b: Builder, x: Tensor, visible: Tensor) -> Tensor:
    y = layer_norm(b, x, eps=_EPS, name="ln_1")
    with b.scope("attn"):
        x = b.add(_causal_attention(b, y, visible), x, name="residual")
    y = layer_norm(b, x, eps=_EPS, name="ln_2")
    with b.scope("mlp"):
        y = tanh_gelu(b, dense(b, y, 4 * _FEATURES, name="c_fc"), name="act")
        return b.add(x, dense(b, y, _FEATURES, name="c_proj"), name="residual")


def _gpt2(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    (input_ids,) = inputs
    sequence = input_ids.shape[1]
    words = b.parameter("wte.weight", (_VOCABULARY, _FEATURES), deviation=0.05)
    places = b.parameter("wpe.weight", (_MAX_SEQUENCE, _FEATURES), deviation=0.025)
    positions = b.constant(np.arange(sequence, dtype=np.int64)[None])
    x = b.add(b.gather(words, input_ids, name="wte"), b.gather(places, positions, name="wpe"))
    past = np.tril(np.ones((1, 1, sequence, sequence), np.int64))
    visible = b.node("Cast", [b.constant(past)], past.shape, name="causal", dtype="bool", to=9)
    for layer in range(_LAYERS):
        with b.scope(f"h.{layer}"):
            x = _block(b, x, visible)
    x = layer_norm(b, x, eps=_EPS, name="ln_f")
    b.output(b.matmul(x, b.transpose(words, (1, 0), name="lm_head.weight"), name="lm_head"), "logits")


NETWORKS = (
    Network(
        "gpt2_small",
        "gpt",
        "GPT-2 small over a whole prompt, without a cache of keys and values",
        "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
        _inputs,
        _gpt2,
        sequence=Size(64, smallest=1, largest=_MAX_SEQUENCE),
    ),
)
