"""Modules of torchvision and transformers with random weights, and what they are called with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

VISION = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "regnet_y_800mf")
TRANSFORMERS = ("bert", "gpt2")
NETWORKS = (*VISION, *TRANSFORMERS)


@dataclass(frozen=True, slots=True)
class TorchCase:
    """A module in evaluation mode, what it is called with by name, and the output that is compared."""

    module: Any
    inputs: Mapping[str, Any]
    output: Callable[[Any], Any]

    def exact(self) -> Any:
        """The output in float64, of the same weights and inputs."""
        inputs = {name: x.double() if x.is_floating_point() else x for name, x in self.inputs.items()}
        with torch.no_grad():
            return self.output(copy.deepcopy(self.module).double()(**inputs))


def torch_case(name: str, size: int | None = None) -> TorchCase:
    """One of `NETWORKS`: on an image of `size` pixels, or on so many tokens."""
    torch.manual_seed(0)
    if name == "bert":
        return _bert(size or 128)
    return _gpt2(size or 64) if name == "gpt2" else _vision(name, size or 224)


def _vision(name: str, size: int) -> TorchCase:
    import torchvision

    module = getattr(torchvision.models, name)(weights=None).eval()
    return TorchCase(module, {"x": torch.randn(1, 3, size, size)}, lambda y: y)


def _bert(tokens: int) -> TorchCase:
    """Six layers, with a mask that hides the last tokens."""
    from transformers import BertConfig, BertModel

    module = BertModel(BertConfig(num_hidden_layers=6), add_pooling_layer=False).eval()
    mask = torch.ones(1, tokens, dtype=torch.long)
    mask[:, -tokens // 8 :] = 0
    inputs = {"input_ids": torch.randint(0, 30000, (1, tokens)), "attention_mask": mask}
    return TorchCase(module, inputs, lambda y: y.last_hidden_state)


def _gpt2(tokens: int) -> TorchCase:
    """Six layers, without a cache."""
    from transformers import GPT2Config, GPT2Model

    module = GPT2Model(GPT2Config(n_layer=6, use_cache=False)).eval()
    return TorchCase(
        module, {"input_ids": torch.randint(0, 50000, (1, tokens))}, lambda y: y.last_hidden_state
    )
