"""What a run has of a sweep: cases of tests that are `sampled`, drawn by a seed, and a share of examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from math import ceil

from hypothesis import settings

EXAMPLES_SHARE = 0.25
"""Of the random examples of a test, by default."""
RARE_SHARE = 0.05
"""Of the cases of tests that ask for none, by default."""
_FEWEST_EXAMPLES = 5
_SETTINGS = "_hypothesis_internal_use_settings"
"""The attribute by which hypothesis's own plugin for pytest changes what a test asks for, too."""


def place(seed: str, case: str) -> float:
    """The place of a case in the order of a seed, from 0 to 1, whatever other cases there are."""
    return int.from_bytes(hashlib.sha256(f"{seed} {case}".encode()).digest()[:8]) / 2**64


def drawn(cases: Iterable[str], count: int, seed: str, share: float = 0.0) -> set[str]:
    """The first `count` cases in the order of a seed, and of the others those that the share asks for."""
    ordered = sorted((place(seed, case), case) for case in cases)
    return {case for number, (at, case) in enumerate(ordered) if number < count or at < share}


def with_examples(function: Callable[..., object], share: float) -> None:
    """Let a test have this share of the examples that it asks for; all, if they are the same in each run."""
    asked = getattr(function, _SETTINGS, None)
    if asked is not None and not asked.derandomize:
        fewest = min(asked.max_examples, _FEWEST_EXAMPLES)
        setattr(
            function, _SETTINGS, settings(asked, max_examples=max(fewest, ceil(asked.max_examples * share)))
        )
