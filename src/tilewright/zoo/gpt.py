"""GPT-2 small, with a head tied to the embeddings: over a whole prompt, and by one token with a cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import dense, layer_norm, tanh_gelu
from tilewright.zoo.network import Fill, InputSpec, Settings, Size, ZooNetwork

_VOCABULARY = 50257
_MAX_SEQUENCE = 1024
_LAYERS, _HEADS, _FEATURES = 12, 12, 768
_EPS = 1e-5


def _inputs(settings: Settings) -> tuple[InputSpec, ...]:
    return (InputSpec("input_ids", (settings.batch, settings.sequence), Fill.INDEX, _VOCABULARY),)


@dataclass(slots=True)
class _Sight:
    """What positions attend to: those before in the prompt, or a cache of keys and values and themselves.

    `cache` holds (keys, values) of the layers to come, `present` those of the layers done.
    """

    visible: Tensor | None = None
    cache: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    present: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def _attention(b: Builder, x: Tensor, sight: _Sight) -> Tensor:
    batch, sequence, features = x.shape
    width = features // _HEADS
    split = (batch, sequence, _HEADS, width)
    joint = dense(b, x, 3 * features, name="c_attn", gain=math.sqrt(2.0))
    query, key, value = b.split(joint, (features,) * 3, axis=2)
    query = b.transpose(b.reshape(query, split), (0, 2, 1, 3))
    if sight.cache:
        past_key, past_value = sight.cache.pop(0)
        key = b.transpose(b.reshape(key, split), (0, 2, 1, 3))
        value = b.transpose(b.reshape(value, split), (0, 2, 1, 3))
        key, value = b.concat([past_key, key], axis=2), b.concat([past_value, value], axis=2)
        sight.present.append((key, value))
        key = b.transpose(key, (0, 1, 3, 2))
    else:
        key = b.transpose(b.reshape(key, split), (0, 2, 3, 1))
        value = b.transpose(b.reshape(value, split), (0, 2, 1, 3))
    scores = b.binary("Div", b.matmul(query, key, name="scores"), math.sqrt(width))
    if sight.visible is not None:
        lowest = b.constant(float(np.finfo(np.float32).min))
        scores = b.node("Where", [sight.visible, scores, lowest], scores.shape, name="mask", dtype="float32")
    context = b.transpose(b.matmul(b.softmax(scores), value, name="context"), (0, 2, 1, 3))
    return dense(b, b.reshape(context, x.shape), features, name="c_proj")


def _block(b: Builder, x: Tensor, sight: _Sight) -> Tensor:
    y = layer_norm(b, x, eps=_EPS, name="ln_1")
    with b.scope("attn"):
        x = b.add(_attention(b, y, sight), x, name="residual")
    y = layer_norm(b, x, eps=_EPS, name="ln_2")
    with b.scope("mlp"):
        y = tanh_gelu(b, dense(b, y, 4 * _FEATURES, name="c_fc"), name="act")
        return b.add(x, dense(b, y, _FEATURES, name="c_proj"), name="residual")


def _decoder(b: Builder, input_ids: Tensor, first: int, sight: _Sight) -> None:
    """From token numbers at the positions from `first` on to the graph's output."""
    words = b.parameter("wte.weight", (_VOCABULARY, _FEATURES), deviation=0.05)
    places = b.parameter("wpe.weight", (_MAX_SEQUENCE, _FEATURES), deviation=0.025)
    positions = b.constant(np.arange(first, first + input_ids.shape[1], dtype=np.int64)[None])
    x = b.add(b.gather(words, input_ids, name="wte"), b.gather(places, positions, name="wpe"))
    if not first:
        past = np.tril(np.ones((1, 1, *input_ids.shape[1:] * 2), np.int64))
        sight.visible = b.node("Cast", [b.constant(past)], past.shape, name="causal", dtype="bool", to=9)
    for layer in range(_LAYERS):
        with b.scope(f"h.{layer}"):
            x = _block(b, x, sight)
    x = layer_norm(b, x, eps=_EPS, name="ln_f")
    b.output(b.matmul(x, b.transpose(words, (1, 0), name="lm_head.weight"), name="lm_head"), "logits")


def _gpt2(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    _decoder(b, inputs[0], 0, _Sight())


def _cache_inputs(settings: Settings) -> tuple[InputSpec, ...]:
    shape = (settings.batch, _HEADS, settings.sequence, _FEATURES // _HEADS)
    cache = (
        InputSpec(f"past_key_values.{layer}.{part}", shape)
        for layer in range(_LAYERS)
        for part in ("key", "value")
    )
    return (InputSpec("input_ids", (settings.batch, 1), Fill.INDEX, _VOCABULARY), *cache)


def _gpt2_decode(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    input_ids, *cache = inputs
    sight = _Sight(cache=list(zip(cache[::2], cache[1::2], strict=True)))
    _decoder(b, input_ids, cache[0].shape[2], sight)
    for layer, (key, value) in enumerate(sight.present):
        b.output(key, f"present.{layer}.key")
        b.output(value, f"present.{layer}.value")


NETWORKS = (
    ZooNetwork(
        "gpt2_small",
        "gpt",
        "GPT-2 small over a whole prompt, without a cache of keys and values",
        "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
        _inputs,
        _gpt2,
        sequence=Size(64, smallest=1, largest=_MAX_SEQUENCE),
    ),
    ZooNetwork(
        "gpt2_decode",
        "gpt",
        "GPT-2 small by one token; the sequence counts those before it, whose keys and values are cached",
        "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
        _cache_inputs,
        _gpt2_decode,
        sequence=Size(512, smallest=1, largest=_MAX_SEQUENCE - 1),
    ),
)
