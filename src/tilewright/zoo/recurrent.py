"""Recurrent networks as PyTorch exports them: an LSTM that predicts words, a GRU that tags them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import dense
from tilewright.zoo.network import Fill, InputSpec, Settings, Size, ZooNetwork

_LSTM_VOCABULARY, _LSTM_UNITS = 10000, 650
_GRU_VOCABULARY, _GRU_FEATURES, _GRU_UNITS, _GRU_CLASSES = 20000, 300, 256, 17
_LAYERS = 2
_GATES = {"LSTM": 4, "GRU": 3}


def _recurrent(b: Builder, x: Tensor, op_type: str, units: int, *, directions: int, name: str) -> Tensor:
    """One layer over [steps, batch, features], initial states zero; directions side by side in the result."""
    steps, batch, features = x.shape
    rows = _GATES[op_type] * units
    # As PyTorch draws them, but for the input's size.
    deviation = math.sqrt(1.0 / units)
    with b.scope(name):
        weights = [
            b.parameter(
                "weight_ih", (directions, rows, features), deviation=math.sqrt(1.0 / (features * x.power))
            ),
            b.parameter("weight_hh", (directions, rows, units), deviation=deviation),
            b.parameter("bias", (directions, 2 * rows), deviation=0.5 * deviation),
        ]
        zeros = b.constant(np.zeros((directions, batch, units), np.float32))
        states = [zeros, zeros] if op_type == "LSTM" else [zeros]
        attributes: dict[str, Any] = {"linear_before_reset": 1} if op_type == "GRU" else {}
        y = b.node(
            op_type,
            [x, *weights, None, *states],
            (steps, directions, batch, units),
            name=op_type.lower(),
            power=0.15,
            hidden_size=units,
            direction="bidirectional" if directions == 2 else "forward",
            **attributes,
        )
        if directions == 1:
            return b.squeeze(y, 1)
        y = b.transpose(y, (0, 2, 1, 3))
        return b.reshape(y, (steps, batch, directions * units))


def _tokens(settings: Settings, vocabulary: int) -> tuple[InputSpec, ...]:
    return (InputSpec("input_ids", (settings.batch, settings.sequence), Fill.INDEX, vocabulary),)


def _lstm_words(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    table = b.parameter("encoder.weight", (_LSTM_VOCABULARY, _LSTM_UNITS), deviation=1.0)
    x = b.transpose(b.gather(table, inputs[0], name="encoder"), (1, 0, 2))
    for layer in range(_LAYERS):
        x = _recurrent(b, x, "LSTM", _LSTM_UNITS, directions=1, name=f"rnn.{layer}")
    b.output(dense(b, b.transpose(x, (1, 0, 2)), _LSTM_VOCABULARY, name="decoder"), "logits")


def _gru_tagger(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    table = b.parameter("embedding.weight", (_GRU_VOCABULARY, _GRU_FEATURES), deviation=1.0)
    x = b.transpose(b.gather(table, inputs[0], name="embedding"), (1, 0, 2))
    for layer in range(_LAYERS):
        x = _recurrent(b, x, "GRU", _GRU_UNITS, directions=2, name=f"gru.{layer}")
    b.output(dense(b, b.transpose(x, (1, 0, 2)), _GRU_CLASSES, name="tags"), "logits")


NETWORKS = (
    ZooNetwork(
        "lstm_words",
        "recurrent",
        "LSTM of two layers of 650 units that predicts the next of 10,000 words",
        "Zaremba et al., Recurrent Neural Network Regularization, 2014",
        lambda settings: _tokens(settings, _LSTM_VOCABULARY),
        _lstm_words,
        sequence=Size(35, smallest=1),
    ),
    ZooNetwork(
        "gru_tagger",
        "recurrent",
        "GRU of two layers of 256 units in each direction that tags words",
        "Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014",
        lambda settings: _tokens(settings, _GRU_VOCABULARY),
        _gru_tagger,
        sequence=Size(64, smallest=1),
    ),
)
