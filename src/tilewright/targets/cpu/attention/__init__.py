"""Attention in one kernel: products, masks and softmax of a tile of queries while it is in the cache."""

from tilewright.targets.cpu.attention.plan import AttentionPlan, parse_attention
from tilewright.targets.cpu.attention.template import (
    ATTENTION,
    attention_kernels,
    attention_runs,
    lower_attention,
)

__all__ = [
    "ATTENTION",
    "AttentionPlan",
    "attention_kernels",
    "attention_runs",
    "lower_attention",
    "parse_attention",
]
