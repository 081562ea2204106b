"""The choice of the next token from its logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InputError, UsageError
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: the likeliest at temperature 0, else by their probabilities.

    `top_k` leaves the likeliest so many (0: all), `top_p` the fewest that together have this probability.
    Each sequence of a batch draws from its own generator, so that its tokens do not depend on the others.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature {self.temperature:g}: give 0 or more.")
        if self.top_k < 0:
            raise UsageError(
                f"top_k {self.top_k}: give how many of the likeliest tokens count, or 0 for all."
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p:g}: give a probability above 0, at most 1.")
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: give a number that is not negative.")

    def generators(self, num_sequences: int) -> list[np.random.Generator]:
        """One for each sequence."""
        return [np.random.default_rng((self.seed, number)) for number in range(num_sequences)]

    def choose(self, logits: Array, generators: Sequence[np.random.Generator]) -> Array:
        """Tokens (sequences,) for logits (sequences, tokens); of equal logits the first token.

        Raises:
            InputError: the largest is no finite number.
        """
        likeliest = np.asarray(logits.argmax(axis=-1), np.int64)
        largest = np.take_along_axis(logits, likeliest[:, None], axis=-1)
        if not np.isfinite(largest).all():
            raise InputError("the model's logits are NaN or infinite: no token can be chosen by them.")
        if not self.temperature:
            return likeliest
        drawn = (self._drawn(row, generator) for row, generator in zip(logits, generators, strict=True))
        return np.fromiter(drawn, np.int64, len(logits))

    def _drawn(self, logits: Array, generator: np.random.Generator) -> int:
        order = np.argsort(-logits, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        with np.errstate(over="ignore"):
            scaled = (logits[order].astype(np.float64) - float(logits[order[0]])) / self.temperature
        shares = np.exp(scaled)
        sums = np.cumsum(shares / shares.sum())
        num = int(np.searchsorted(sums, self.top_p)) + 1 if self.top_p < 1 else len(sums)
        at = np.searchsorted(sums[:num], generator.random() * sums[min(num, len(sums)) - 1], side="right")
        return int(order[min(int(at), num - 1, len(order) - 1)])
