"""Encoder transformers: BERT in its sizes, MiniLM, and the vision transformer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import attention, dense, gelu, layer_norm
from tilewright.zoo.network import Fill, InputSpec, Settings, Size, ZooNetwork, image_network

# The most negative float32: what PyTorch adds to the scores of masked positions.
_MASKED = float(np.finfo(np.float32).min)
_VOCABULARY = 30522
_MAX_SEQUENCE = 512

# BERT


@dataclass(frozen=True, slots=True)
class _BertShape:
    layers: int
    hidden: int
    heads: int

    @property
    def intermediate(self) -> int:
        return 4 * self.hidden


def _bert_inputs(settings: Settings) -> tuple[InputSpec, ...]:
    shape = (settings.batch, settings.sequence)
    return (
        InputSpec("input_ids", shape, Fill.INDEX, _VOCABULARY),
        InputSpec("token_type_ids", shape, Fill.SEGMENT, 2),
        InputSpec("attention_mask", shape, Fill.MASK, 2),
    )


def _embeddings(b: Builder, input_ids: Tensor, token_type_ids: Tensor, hidden: int) -> Tensor:
    words = b.parameter("word_embeddings.weight", (_VOCABULARY, hidden), deviation=1.0)
    positions = b.parameter("position_embeddings.weight", (_MAX_SEQUENCE, hidden), deviation=0.5)
    types = b.parameter("token_type_embeddings.weight", (2, hidden), deviation=0.5)
    sequence = input_ids.shape[1]
    position_ids = b.constant(np.arange(sequence, dtype=np.int64)[None])
    x = b.add(
        b.gather(words, input_ids, name="word_embeddings"),
        b.gather(types, token_type_ids, name="token_type_embeddings"),
    )
    x = b.add(x, b.gather(positions, position_ids, name="position_embeddings"))
    return layer_norm(b, x, eps=1e-12, name="LayerNorm")


def _additive_mask(b: Builder, attention_mask: Tensor) -> Tensor:
    """[batch, sequence] of ones and zeros to [batch, 1, 1, sequence] of zeros and very negative numbers."""
    mask = b.unsqueeze(b.unsqueeze(attention_mask, 1), 2)
    mask = b.node("Cast", [mask], mask.shape, name="cast", dtype="float32", to=1)  # TensorProto.FLOAT
    return b.mul(b.binary("Sub", b.constant(1.0), mask, name="sub"), _MASKED)


def _encoder_layer(b: Builder, x: Tensor, shape: _BertShape, mask: Tensor) -> Tensor:
    with b.scope("attention.self"):
        context = attention(b, x, heads=shape.heads, mask=mask)
    with b.scope("attention.output"):
        y = b.add(dense(b, context, shape.hidden, name="dense"), x, name="residual")
        x = layer_norm(b, y, eps=1e-12, name="LayerNorm")
    with b.scope("intermediate"):
        y = gelu(b, dense(b, x, shape.intermediate, name="dense"))
    with b.scope("output"):
        y = b.add(dense(b, y, shape.hidden, name="dense"), x, name="residual")
        return layer_norm(b, y, eps=1e-12, name="LayerNorm")


def _bert(b: Builder, inputs: tuple[Tensor, ...], *, shape: _BertShape) -> None:
    input_ids, token_type_ids, attention_mask = inputs
    mask = _additive_mask(b, attention_mask)
    with b.scope("embeddings"):
        x = _embeddings(b, input_ids, token_type_ids, shape.hidden)
    for layer in range(shape.layers):
        with b.scope(f"encoder.layer.{layer}"):
            x = _encoder_layer(b, x, shape, mask)
    with b.scope("pooler"):
        first = b.gather(x, b.constant(0), axis=1)
        pooled = b.unary("Tanh", b.gemm(first, shape.hidden, name="dense"), name="activation")
    b.output(x, "last_hidden_state")
    b.output(pooled, "pooler_output")


def _bert_network(name: str, description: str, paper: str, shape: _BertShape) -> ZooNetwork:
    return ZooNetwork(
        name,
        "bert",
        description,
        paper,
        _bert_inputs,
        partial(_bert, shape=shape),
        sequence=Size(128, smallest=1, largest=_MAX_SEQUENCE),
    )


# Vision transformer


def _vit_layer(b: Builder, x: Tensor, heads: int) -> Tensor:
    features = x.shape[-1]
    y = layer_norm(b, x, eps=1e-6, name="ln_1")
    with b.scope("self_attention"):
        y = dense(b, attention(b, y, heads=heads), features, name="out_proj")
    x = b.add(y, x, name="add_1")
    y = layer_norm(b, x, eps=1e-6, name="ln_2")
    with b.scope("mlp"):
        y = gelu(b, dense(b, y, 4 * features, name="0"), name="1")
        y = dense(b, y, features, name="3")
    return b.add(x, y, name="add_2")


def _vit_b_16(b: Builder, x: Tensor) -> None:
    features, patch, heads = 768, 16, 12
    x = b.conv(x, features, patch, stride=patch, bias=True, name="conv_proj")
    batch, _, rows, columns = x.shape
    tokens = b.transpose(b.reshape(x, (batch, features, rows * columns)), (0, 2, 1))
    cls = b.parameter("class_token", (1, 1, features), deviation=1.0)
    shape = (batch, 1, features)
    cls = b.node("Expand", [cls, b.constant(shape)], shape, name="expand")
    x = b.concat([cls, tokens], axis=1)
    with b.scope("encoder"):
        x = b.add(x, b.parameter("pos_embedding", (1, x.shape[1], features), deviation=0.5))
        for layer in range(12):
            with b.scope(f"layers.encoder_layer_{layer}"):
                x = _vit_layer(b, x, heads)
        x = layer_norm(b, x, eps=1e-6, name="ln")
    first = b.gather(x, b.constant(0), axis=1)
    b.output(b.gemm(first, 1000, name="heads.head"), "logits")


_BERT = "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, NAACL 2019"

NETWORKS = (
    _bert_network(
        "bert_tiny",
        "BERT of 2 layers, 128 features, 2 heads",
        "Turc et al., Well-Read Students Learn Better, 2019",
        _BertShape(layers=2, hidden=128, heads=2),
    ),
    _bert_network(
        "minilm_l6",
        "BERT of 6 layers, 384 features, 12 heads",
        "Wang et al., MiniLM: Deep Self-Attention Distillation, NeurIPS 2020",
        _BertShape(layers=6, hidden=384, heads=12),
    ),
    _bert_network("bert_base", "BERT base", _BERT, _BertShape(layers=12, hidden=768, heads=12)),
    _bert_network("bert_large", "BERT large", _BERT, _BertShape(layers=24, hidden=1024, heads=16)),
    image_network(
        "vit_b_16",
        "vit",
        "Vision transformer, base, patches of 16 x 16; the position table follows the image size",
        "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021",
        _vit_b_16,
        image=Size(224, smallest=16, multiple=16),
    ),
)
