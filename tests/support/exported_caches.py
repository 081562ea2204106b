"""Decoders with caches as PyTorch's exporter writes them, of small random configurations of transformers.

Which is imported, with torch, when one is built. The past of each layer is an input whose length is open.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from typing import Any

from onnx import ModelProto

MODULES = ("torch", "onnxscript", "transformers")
"""What must be installed."""
KINDS = ("gpt2", "llama", "qwen", "gemma")
PAST = "past"
"""The name of the open length."""


def is_installed() -> bool:
    """Whether these models can be built here."""
    return all(importlib.util.find_spec(name) for name in MODULES)


def network(kind: str, *, layers: int = 2, width: int = 64, heads: int = 4, vocabulary: int = 128) -> Any:
    """A language model with random weights."""
    import torch
    from transformers import (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    torch.manual_seed(0)
    common = {"vocab_size": vocabulary, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 1}
    if kind == "gpt2":
        sizes = {"n_embd": width, "n_layer": layers, "n_head": heads}
        return GPT2LMHeadModel(GPT2Config(**sizes, **common)).eval()
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "intermediate_size": 3 * width,
        "head_dim": width // heads,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, **common)).eval()
    if kind == "qwen":
        return Qwen3ForCausalLM(Qwen3Config(**sizes, **common)).eval()
    sliding = {
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
    }
    return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **sliding, **common)).eval()


def decoder_with_cache(kind: str, **sizes: int) -> ModelProto:
    """A step of a decoder: `ids` [1, 1] and for each layer a past key and value [1, heads, past, depth] in;
    logits, and the same with one position more, out."""
    import torch
    from transformers.cache_utils import DynamicCache

    module = network(kind, **sizes)
    config = module.config
    num_layers = config.num_hidden_layers
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any, past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(num_layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = module(input_ids=ids, past_key_values=cache, use_cache=True)
            whole = [t for layer in found.past_key_values.layers for t in (layer.keys, layer.values)]
            return found.logits, *whole

    sides = ("key", "value")
    layers = [f"{layer}.{side}" for layer in range(num_layers) for side in sides]
    symbol = torch.export.Dim(PAST, min=2, max=4096)
    past = tuple(torch.randn(1, num_heads, 7, depth) for _ in layers)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Step().eval(),
            (torch.zeros(1, 1, dtype=torch.long), past),
            dynamo=True,
            dynamic_shapes={"ids": {}, "past": tuple({2: symbol} for _ in layers)},
            input_names=["ids", *(f"past_key_values.{name}" for name in layers)],
            output_names=["logits", *(f"present.{name}" for name in layers)],
            verbose=False,
        )
    model: ModelProto = program.model_proto
    return model


def batched_decoder(kind: str, **sizes: int) -> ModelProto:
    """A decoder with all lengths open: `input_ids` and `position_ids` (batch, length), `attention_mask` of
    past and length, and for each layer a past key and value; logits, and the caches with what is new."""
    import torch
    from transformers.cache_utils import DynamicCache

    module = network(kind, **sizes)
    config = module.config
    num_layers = config.num_hidden_layers
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any, mask: Any, positions: Any, past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(num_layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = module(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            whole = [t for layer in found.past_key_values.layers for t in (layer.keys, layer.values)]
            return found.logits, *whole

    batch, length, num_past = 2, 5, 3
    layers = [f"{layer}.{side}" for layer in range(num_layers) for side in ("key", "value")]
    anything = torch.export.Dim.DYNAMIC
    ids = torch.zeros(batch, length, dtype=torch.long)
    mask = torch.ones(batch, num_past + length, dtype=torch.long)
    positions = torch.arange(num_past, num_past + length).expand(batch, length)
    past = tuple(torch.randn(batch, num_heads, num_past, depth) for _ in layers)
    open_rows = {0: anything, 1: anything}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Step().eval(),
            (ids, mask, positions, past),
            dynamo=True,
            dynamic_shapes={
                "ids": open_rows,
                "mask": open_rows,
                "positions": open_rows,
                "past": tuple({0: anything, 2: anything} for _ in layers),
            },
            input_names=[
                *("input_ids", "attention_mask", "position_ids"),
                *(f"past_key_values.{name}" for name in layers),
            ],
            output_names=["logits", *(f"present.{name}" for name in layers)],
            verbose=False,
        )
    model: ModelProto = program.model_proto
    return model
