"""Draws of cases by a seed: which cases of a test that is `sampled` a run has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def place(seed: str, case: str) -> float:
    """The place of a case in the order of a seed, from 0 to 1, whatever other cases there are."""
    return int.from_bytes(hashlib.sha256(f"{seed} {case}".encode()).digest()[:8]) / 2**64


def drawn(cases: Iterable[str], count: int, seed: str, share: float = 0.0) -> set[str]:
    """The first `count` cases in the order of a seed, and of the others those that the share asks for."""
    ordered = sorted((place(seed, case), case) for case in cases)
    return {case for number, (at, case) in enumerate(ordered) if number < count or at < share}
