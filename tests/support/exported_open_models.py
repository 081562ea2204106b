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
import onnx
from onnx import ModelProto
from tests.support.open_models import Feed, OpenModel

_SCORE_SPREAD = 1.0
"""Of the last weights of a detector: then few classes are likely in a place, as after training."""

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


def torchvision_ssdlite() -> ModelProto:
    """A detector of torchvision, for an image of any size: which boxes it has, NonMaxSuppression decides.

    The exporter that traces writes it; scores are spread as those of a trained network.
    """
    import torch
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    for level in network.head.classification_head.module_list:
        torch.nn.init.normal_(level[-1].weight, std=_SCORE_SPREAD)

    class Detected(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, image: Any) -> Any:
            found = self.network([image])[0]
            return found["boxes"], found["scores"], found["labels"]

    _need_suppression()
    outputs = {name: {0: "kept"} for name in ("boxes", "scores", "labels")}
    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Detected().eval().requires_grad_(False),
            (torch.rand(3, 200, 300),),
            file,
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=list(outputs),
            dynamic_axes={"image": {1: "height", 2: "width"}, **outputs},
        )
    return onnx.load_from_string(file.getvalue())


def _need_suppression() -> None:
    """Let torchvision trace detectors where its compiled operators do not fit the torch that is installed.

    What tracing sees of suppressed boxes is that there are some: exported is NonMaxSuppression.
    """
    import torch
    import torchvision

    if torchvision.extension._has_ops():
        return

    def kept(boxes: Any, scores: Any, overlap: float) -> Any:
        return torch.argsort(scores, descending=True)

    torch.library.impl("torchvision::nms", "CPU")(kept)
    torchvision.extension._assert_has_ops = torchvision.ops.boxes._assert_has_ops = _require_nothing


def _require_nothing() -> None:
    """Which torch compiles, too, so that it must be a function with a body."""
    return None


def _sentences(shapes: Sequence[tuple[int, int]]) -> list[Feed]:
    rng = np.random.default_rng(0)
    feeds: list[Feed] = []
    for batch, length in shapes:
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 + 1 :] = 0
        feeds.append({"ids": rng.integers(0, 1000, (batch, length)), "mask": mask})
    return feeds


def _photos(shapes: Sequence[tuple[int, ...]], name: str = "x") -> list[Feed]:
    rng = np.random.default_rng(0)
    return [{name: rng.standard_normal(shape).astype(np.float32)} for shape in shapes]


_SENTENCES = ((1, 16), (2, 9), (4, 32), (1, 61), (3, 128))
_SIDES = ((3, 200, 300), (3, 240, 320), (3, 320, 320), (3, 333, 500), (3, 480, 360))
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
    OpenModel(
        "torchvision_ssdlite",
        "torchvision's detector, image size open",
        torchvision_ssdlite,
        lambda: _photos(_SIDES, "image"),
    ),
)
