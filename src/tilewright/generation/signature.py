"""The inputs and outputs of a decoder, by the names that exporters give them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.errors import UsageError
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.compiled_facts import TensorInfo

_TOKENS = ("input_ids", "ids", "tokens")
_ROLES = {
    "mask": ("attention_mask", "mask"),
    "positions": ("position_ids", "positions"),
    "last_places": ("seqlens_k",),
    "num_places": ("total_sequence_length",),
    "places": ("cache_position",),
    "has_past": ("use_cache_branch",),
}
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_PRESENT = re.compile(r"present|past|cache", re.IGNORECASE)
_LOGITS = ("logits", "output", "lm_logits")


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys or values of a layer: an input that is what the last step put out.

    `shape` is the input's, with names or None where it is open. `axis` is that of positions.
    """

    past: TensorInfo
    present: str
    axis: int

    @property
    def num_places(self) -> int | None:
        """Of a buffer whose places are filled; None: a cache that grows."""
        extent = self.past.shape[self.axis]
        return extent if isinstance(extent, int) else None

    def empty_shape(self, num_sequences: int) -> tuple[int, ...]:
        """Of the cache before the first token.

        Raises:
            UsageError: an extent besides batch and positions is open.
        """
        shape: list[int] = []
        for axis, extent in enumerate(self.past.shape):
            if axis == self.axis:
                shape.append(self.num_places or 0)
            elif isinstance(extent, int):
                shape.append(extent)
            elif axis == 0 or (axis == 1 and self.past.shape[0] == 2):  # keys and values in one
                shape.append(num_sequences)
            else:
                raise UsageError(
                    f"input {self.past.name!r}: its axis {axis} is open ({extent}), so the size of an empty "
                    "cache is not known: export the model with numbers for heads and depth."
                )
        return tuple(shape)


@dataclass(frozen=True, slots=True)
class DecoderSignature:
    """What a decoder is fed and gives: names of its inputs by their role, None where it has no such input.

    `mask` is 1 at positions that count, `positions` numbers them; `last_places` and `num_places` are what
    GroupQueryAttention asks for, `places` numbers the places of caches that are written, and `has_past` is
    whether there are any before. Without `caches` all tokens are fed in every step.
    """

    tokens: TensorInfo
    logits: str
    caches: tuple[Cache, ...] = ()
    mask: TensorInfo | None = None
    positions: TensorInfo | None = None
    last_places: TensorInfo | None = None
    num_places: TensorInfo | None = None
    places: TensorInfo | None = None
    has_past: TensorInfo | None = None

    @classmethod
    def of(cls, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> DecoderSignature:
        """Read off names and types.

        Raises:
            UsageError: no tokens or logits are found, an input has no role, or a cache has no counterpart.
        """
        whole = [i for i in inputs if i.dtype.numpy.kind in "iu" and not _PAST.search(i.name)]
        roles = {r: next((i for i in inputs if i.name in names), None) for r, names in _ROLES.items()}
        taken = {info.name for info in roles.values() if info is not None}
        named = next((i for i in whole if i.name in _TOKENS), None)
        left = [i for i in whole if i.name not in taken]
        tokens = named or (left[0] if len(left) == 1 else None)
        if tokens is None or len(tokens.shape) != 2:
            raise UsageError(
                "the model is no decoder: it has no input of token numbers, (batch, length), as input_ids is."
            )
        floats = [o for o in outputs if o.dtype.is_float and len(o.shape) in (2, 3)]
        logits = next((o for o in floats if o.name in _LOGITS), floats[0] if floats else None)
        if logits is None:
            raise UsageError("the model is no decoder: it has no output of logits, (batch, length, tokens).")
        pasts = [i for i in inputs if _PAST.search(i.name) and len(i.shape) > 2]
        rest = [i for i in inputs if i.name not in taken and i is not tokens and i not in pasts]
        if rest:
            raise UsageError(
                f"input {rest[0].name!r}: it is not known what a decoder is fed there; feed it step by step "
                "yourself."
            )
        others = [o for o in outputs if o is not logits]
        presents = [o for o in others if _PRESENT.search(o.name)] or others
        return cls(tokens, logits.name, _caches(pasts, presents), **roles)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Those besides caches."""
        found = (self.tokens, *(getattr(self, role) for role in _ROLES))
        return tuple(info for info in found if info is not None)

    @property
    def num_new(self) -> int | None:
        """How many tokens a step takes; None where that is open."""
        extent = self.tokens.shape[1]
        return extent if isinstance(extent, int) else None

    @property
    def most_places(self) -> int | None:
        """How many positions a sequence may have; None where shapes do not limit them."""
        return self.num_places_of_caches if self.caches else self.num_new

    @property
    def num_places_of_caches(self) -> int | None:
        """How many positions caches of fixed length hold; None where they grow, or there are none."""
        return next((c.num_places for c in self.caches if c.num_places is not None), None)


def _caches(pasts: Sequence[TensorInfo], presents: Sequence[TensorInfo]) -> tuple[Cache, ...]:
    """Pasts with what follows them: of the same layer and side by their names, else in their order."""
    by_place = {_place(info.name): info for info in presents}
    places = [_place(info.name) for info in pasts]
    if len(set(places)) == len(pasts) and all(place in by_place for place in places):
        return tuple(
            Cache(past, by_place[place].name, _axis(past, by_place[place]))
            for past, place in zip(pasts, places, strict=True)
        )
    if len(pasts) != len(presents):
        raise UsageError(
            f"{len(pasts)} caches go in and {len(presents)} come out: it is not known which follows which."
        )
    return tuple(
        Cache(past, present.name, _axis(past, present)) for past, present in zip(pasts, presents, strict=True)
    )


def _place(name: str) -> tuple[str, ...]:
    """Layer and side that a name speaks of.

    >>> _place("past_key_values.11.value"), _place("present.11.value")
    (('11', 'v'), ('11', 'v'))
    >>> _place("past_k0"), _place("present.0.key")
    (('0', 'k'), ('0', 'k'))
    """
    sides = re.findall(
        r"decoder|encoder|key|value|(?<![a-z])[kv](?![a-z])", name.lower().replace("key_values", "")
    )
    return (*re.findall(r"\d+", name), *(side[0] for side in sides))


def _axis(past: TensorInfo, present: TensorInfo) -> int:
    """The axis of positions: where an open extent is another afterwards, else that before the last."""
    for axis, (one, other) in enumerate(zip(past.shape, present.shape, strict=False)):
        if axis and not isinstance(one, int) and one != other:
            return axis
    return len(past.shape) - 2
