"""Attention as one kernel: scores never leave the block that computes them."""

from tilewright.targets.cuda.attention.generate import lower_attention as lower_attention
from tilewright.targets.cuda.attention.plan import find_attention as find_attention
from tilewright.targets.cuda.attention.plan import plan_attention as plan_attention
