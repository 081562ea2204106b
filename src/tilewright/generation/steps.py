"""Steps of generation: a decoder is fed its prompts at once, then token by token what it said itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import ModelRejected, UsageError
from tilewright.generation.sampling import Sampling
from tilewright.generation.signature import DecoderSignature
from tilewright.records import dataclass

Run = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Array]]
"""Outputs by name for a feed."""

_log = logging.getLogger(__name__)

_LEAST_PADDED = 16
PADDING = 0
"""The token at places that do not count."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next token of each sequence; those that had ended have `PADDING`."""

    tokens: Array
    is_running: Array = field(compare=False)
    """For each sequence whether this token is one of its own."""


class Sequences:
    """Prompts side by side, and what each place of the caches holds.

    Prompts of unequal lengths begin with places that do not count, which needs an input for a mask.
    """

    def __init__(self, signature: DecoderSignature, prompts: Sequence[Sequence[int]]) -> None:
        if not prompts or not all(len(prompt) for prompt in prompts):
            raise UsageError("prompts: give at least one token for each sequence.")
        longest = max(map(len, prompts))
        is_level = all(len(prompt) == longest for prompt in prompts)
        if not is_level and signature.mask is None:
            raise UsageError(
                "prompts of unequal lengths need an input attention_mask, which the model lacks: generate "
                "one after another."
            )
        self.signature = signature
        whole: Any = signature.tokens.dtype.numpy
        most = int(np.iinfo(whole).max)
        if max(map(max, prompts)) > most:
            raise UsageError(f"prompts: numbers of tokens are at most {most}.")
        self.tokens = np.full((len(prompts), longest), PADDING, np.int64)
        self.counts = np.zeros((len(prompts), longest), np.int64)  # the mask
        for row, prompt in enumerate(prompts):
            self.tokens[row, longest - len(prompt) :] = prompt
            self.counts[row, longest - len(prompt) :] = 1

    @property
    def length(self) -> int:
        """Places so far."""
        return self.tokens.shape[1]

    def append(self, tokens: Array) -> None:
        """One more place in each sequence."""
        self.tokens = np.concatenate((self.tokens, tokens[:, None]), axis=1)
        self.counts = np.concatenate((self.counts, np.ones((len(tokens), 1), np.int64)), axis=1)

    def feed(self, first: int, end: int, num_padded: int) -> dict[str, Array]:
        """Inputs besides caches for places from `first` to `end`, and so many behind that do not count."""
        known, ahead = self.signature, ((0, 0), (0, num_padded))
        feed = {known.tokens.name: np.pad(self.tokens[:, first:end], ahead, constant_values=PADDING)}
        if known.mask is not None:
            feed[known.mask.name] = np.pad(self.counts[:, :end], ahead)
        if known.positions is not None:
            counted = np.maximum(np.cumsum(self.counts[:, :end], axis=1) - 1, 0)[:, first:]
            feed[known.positions.name] = np.pad(counted, ahead, mode="edge")  # those behind repeat the last
        if known.last_places is not None:
            feed[known.last_places.name] = np.full(len(self.tokens), end - 1)
        if known.num_places is not None:
            feed[known.num_places.name] = np.full((1,) * len(known.num_places.shape), end + num_padded)
        if known.places is not None:
            feed[known.places.name] = np.arange(first, end + num_padded)
        if known.has_past is not None:
            feed[known.has_past.name] = np.full((1,) * len(known.has_past.shape), first > 0)
        dtypes = {info.name: info.dtype.numpy for info in known.inputs}
        return {name: array.astype(dtypes[name], copy=False) for name, array in feed.items()}


def next_tokens(
    run: Run,
    sequences: Sequences,
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: Collection[int] = (),
    pads_prompts: bool = True,
) -> Iterator[Step]:
    """The tokens that follow the prompts, step by step, until every sequence came to a token of `stop`.

    With `pads_prompts` prompts are fed with places behind them up to a power of two, which a causal model
    does not see and whose keys and values are cut off, so that few lengths of prompts are ever compiled.

    Raises:
        UsageError: the model holds fewer places than are asked for.
    """
    state = _State(run, sequences, pads_prompts)
    num_places = sequences.signature.most_places
    if num_places is not None and sequences.length + max_new_tokens - 1 > num_places:
        raise UsageError(
            f"{sequences.length} tokens of a prompt and {max_new_tokens} new ones are more than the "
            f"{num_places} places that the model has: ask for fewer."
        )
    generators = sampling.generators(len(sequences.tokens))
    running = np.ones(len(sequences.tokens), np.bool_)
    for _ in range(max_new_tokens):
        chosen = np.where(running, sampling.choose(state.logits(), generators), PADDING)
        yield Step(chosen, running)
        running = running & ~np.isin(chosen, list(stop))
        if not running.any():
            return
        sequences.append(chosen)


class _State:
    """The caches of sequences, up to the place `first`, and what reads on from there."""

    def __init__(self, run: Run, sequences: Sequences, pads_prompts: bool) -> None:
        self._run, self._sequences, self._pads_prompts = run, sequences, pads_prompts
        self._signature = signature = sequences.signature
        self._names = [signature.logits, *(cache.present for cache in signature.caches)]
        self._first = 0
        self._past = {
            cache.past.name: np.zeros(cache.empty_shape(len(sequences.tokens)), cache.past.dtype.numpy)
            for cache in signature.caches
        }

    def logits(self) -> Array:
        """Of the place behind the last one, (sequences, tokens): all that is new is read, at once or as many
        places at a time as the model takes."""
        length, limit = self._sequences.length, self._signature.num_new
        while True:
            end = length if limit is None or not self._past else min(self._first + limit, length)
            logits = self._read(end)
            if end == length:
                return logits

    def _read(self, end: int) -> Array:
        num_new, most = end - self._first, self._signature.most_places
        padded = self._signature.num_new or num_new
        if self._signature.num_new is None and self._pads_prompts and num_new > 1:
            padded = _padded(num_new, None if most is None else most - self._first)
        is_fixed = self._signature.num_new is not None
        try:
            logits, *found = self._results(end, padded - num_new)
        except (ModelRejected, UsageError) as error:  # a table of positions may end before
            if padded == num_new or is_fixed:
                raise
            _log.info("%d tokens are fed alone, not with places up to %d: %s", num_new, padded, error)
            return self._read_alone(end)
        if padded > num_new and logits.shape[1:-1] != (padded,):  # of the last place alone
            if is_fixed:
                raise UsageError(
                    f"the model reads {padded} tokens at a time and gives logits of the last alone: give a "
                    "prompt of a multiple of that."
                )
            return self._read_alone(end)
        if self._past:
            self._first = end
            surplus = padded - num_new if self._signature.num_places_of_caches is None else 0
            for cache, array in zip(self._signature.caches, found, strict=True):
                self._past[cache.past.name] = _cut(array, cache.axis, surplus)
        return logits[:, num_new - 1 - padded] if logits.ndim == 3 else logits

    def _read_alone(self, end: int) -> Array:
        """Without places behind, now and in later steps."""
        self._pads_prompts = False
        return self._read(end)

    def _results(self, end: int, num_padded: int) -> Sequence[Array]:
        feed = self._sequences.feed(self._first, end, num_padded)
        return self._run(self._names, {**feed, **self._past})


def _padded(length: int, most: int | None) -> int:
    """A power of two that holds a prompt, but no more than there are places."""
    wanted = max(_LEAST_PADDED, 1 << (length - 1).bit_length())
    return wanted if most is None else max(length, min(wanted, most))


def _cut(array: Array, axis: int, num: int) -> Array:
    """A cache without its last so many places."""
    if not num:
        return array
    kept = [slice(None)] * array.ndim
    kept[axis] = slice(0, array.shape[axis] - num)
    return np.ascontiguousarray(array[tuple(kept)])
