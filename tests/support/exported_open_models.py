"""Models with open shapes as PyTorch's exporter writes them, of torchvision and transformers, which are
imported, and exported, when one is built. Tests and benchmarks share them with those of `open_models`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto
from tests.support.open_models import Feed, OpenModel

MODULES = ("torch", "onnxscript", "torchvision", "transformers")
"""What must be installed."""


def is_installed() -> bool:
    """Whether these models can be built here."""
    return all(importlib.util.find_spec(name) for name in MODULES)


def exported(module: Any, arguments: tuple[Any, ...], axes: Mapping[str, Mapping[int, str]]) -> ModelProto:
    """A module with these axes of its arguments open; a name stands for one extent wherever it is."""
    import torch

    names = dict.fromkeys(symbol for dims in axes.values() for symbol in dims.values())
    symbols = {name: torch.export.Dim(name, min=1, max=4096) for name in names}
    shapes = {name: {axis: symbols[s] for axis, s in dims.items()} for name, dims in axes.items()}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), arguments, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    model: ModelProto = program.model_proto
    return model


def hugging_face_bert() -> ModelProto:
    """A BERT as transformers configures it, two layers of it, batch and length open."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        attn_implementation="eager",
    )
    network = BertModel(config).eval()

    class LastHidden(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any, mask: Any) -> Any:
            return network(input_ids=ids, attention_mask=mask).last_hidden_state

    arguments = (torch.randint(0, 1000, (2, 16)), torch.ones(2, 16, dtype=torch.long))
    both = {0: "batch", 1: "length"}
    return exported(LastHidden(), arguments, {"ids": both, "mask": both})


def torchvision_network(name: str, side: int = 64) -> ModelProto:
    """A classifier of torchvision, batch and size of its images open."""
    import torch
    import torchvision

    torch.manual_seed(0)
    network = getattr(torchvision.models, name)(weights=None)
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    return exported(network, (torch.randn(2, 3, side, side),), axes)


def _sentences(shapes: Sequence[tuple[int, int]]) -> list[Feed]:
    rng = np.random.default_rng(0)
    feeds: list[Feed] = []
    for batch, length in shapes:
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 + 1 :] = 0
        feeds.append({"ids": rng.integers(0, 1000, (batch, length)), "mask": mask})
    return feeds


def _photos(shapes: Sequence[tuple[int, ...]]) -> list[Feed]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for shape in shapes]


_SENTENCES = ((1, 16), (2, 9), (4, 32), (1, 61), (3, 128))
_PHOTOS = ((1, 3, 64, 64), (2, 3, 96, 64), (1, 3, 128, 128), (3, 3, 64, 80), (4, 3, 64, 64))

EXPORTED_MODELS = (
    OpenModel(
        "hugging_face_bert",
        "Hugging Face BERT, both axes open",
        hugging_face_bert,
        lambda: _sentences(_SENTENCES),
    ),
    OpenModel(
        "torchvision_resnet18",
        "torchvision, image size and batch open",
        lambda: torchvision_network("resnet18"),
        lambda: _photos(_PHOTOS),
    ),
    OpenModel(
        "torchvision_mobilenet_v3_small",
        "torchvision, image size and batch open",
        lambda: torchvision_network("mobilenet_v3_small"),
        lambda: _photos(_PHOTOS),
    ),
)
