"""Generation of tokens: what an exported decoder is fed and gives, and how the next token is chosen."""

from __future__ import annotations

from tilewright.generation.sampling import Sampling
from tilewright.generation.signature import Cache, DecoderSignature
from tilewright.generation.steps import Sequences, Step, next_tokens

__all__ = ["Cache", "DecoderSignature", "Sampling", "Sequences", "Step", "next_tokens"]
