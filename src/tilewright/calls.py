"""Arguments of a run: inputs by place or by name, and arrays that outputs are written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.arguments import as_array, shown
from tilewright.arrays import Array
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import InputError, UsageError


def bound_inputs(
    inputs: Sequence[TensorInfo], arguments: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """A feed of what a model was called with.

    Raises:
        UsageError: more arguments than inputs, or an input given twice.
    """
    names = [spec.name for spec in inputs]
    if len(arguments) > len(names):
        raise UsageError(f"{len(arguments)} inputs were given: this model takes {', '.join(names)}.")
    feed = dict(zip(names, arguments, strict=False))
    twice = next((name for name in named if name in feed), None)
    if twice is not None:
        raise UsageError(f"input {twice!r} was given twice, by its place and by its name.")
    return {**feed, **named}


def own_feed(feed: Mapping[str, Any]) -> dict[str, Any]:
    """What a feed holds when a run begins, which other threads cannot change.

    Raises:
        UsageError: it is no mapping.
        InputError: another thread changes it meanwhile.
    """
    if type(feed) is dict:
        return feed.copy()
    if not isinstance(feed, Mapping):
        raise UsageError(f"feed is a {type(feed).__name__}: give a dict from input name to array.")
    try:
        return dict(feed)
    except (RuntimeError, KeyError) as error:
        raise InputError(
            "feed: it was changed while it was read; give each run a dict that no other thread changes."
        ) from error


def checked_places(
    outputs: Sequence[TensorInfo], into: Mapping[str, Any], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """The arrays to write outputs to, each sharing the memory of what was given.

    Raises:
        UsageError: one that does not fit its output, cannot be written to as it is, or shares memory.
    """
    specs = {spec.name: spec for spec in outputs}
    places: dict[str, Array] = {}
    for name, value in into.items():
        spec = specs.get(name)
        if spec is None:
            raise UsageError(f"unknown output {shown(name)}: this model gives {', '.join(specs)}.")
        array = as_array(name, value)
        if array.dtype != spec.dtype.numpy or array.shape != spec.shape:
            raise UsageError(
                f"the array for output {name!r} is {array.dtype}{list(array.shape)}, "
                f"the model gives {spec.dtype}{list(spec.shape)}."
            )
        if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
            raise UsageError(
                f"the array for output {name!r} is not contiguous, aligned and writeable: "
                f"give one such as numpy.empty({list(spec.shape)}, {str(spec.dtype)!r})."
            )
        other = next(
            (o for o, a in (*inputs.items(), *places.items()) if np.may_share_memory(array, a)), None
        )
        if other is not None:
            raise UsageError(f"the array for output {name!r} shares memory with that of {other!r}.")
        places[name] = array
    return places
