"""Faults planted in an answer: each number, list and text in it changed a little, one at a time."""

# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

Fault = tuple[str, Callable[[], Any]]
"""Where a change is and what it is, and what makes the answer with it, if its classes let it be made."""


def planted(answer: Any, *, into: tuple[type, ...], skipped: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Answers with one fault each: numbers one more or less, flags and members of enumerations swapped, parts
    of tuples and mappings left out, said twice or in another order; in the fields of `into` alone.

    >>> from tilewright.loops.mapping import Loop
    >>> [(what, make().factor) for what, make in planted(Loop("K", 4), into=(Loop,)) if "factor" in what]
    [('factor + 1', 5), ('factor - 1', 3)]
    """
    yield from _planted("", answer, lambda changed: changed, into, skipped)


def _planted(
    path: str, found: Any, rebuilt: Callable[[Any], Any], into: tuple[type, ...], skipped: frozenset[str]
) -> Iterator[Fault]:
    match found:
        case bool():
            yield f"{path} = {not found}", partial(rebuilt, not found)
        case Enum():
            others = [member for member in type(found) if member is not found]
            yield from ((f"{path} = {other.name}", partial(rebuilt, other)) for other in others[:2])
        case int():
            yield f"{path} + 1", partial(rebuilt, found + 1)
            yield f"{path} - 1", partial(rebuilt, found - 1)
        case float():
            yield f"{path} + 1%", partial(rebuilt, found * 1.01)
            yield f"{path} - 1%", partial(rebuilt, found * 0.99)
        case str():
            yield f"{path} = another", partial(rebuilt, "another")
        case tuple():
            for place, part in enumerate(found):
                rest = (found[:place], found[place + 1 :])
                yield f"{path} without [{place}]", partial(rebuilt, (*rest[0], *rest[1]))
                yield from _planted(
                    f"{path}[{place}]",
                    part,
                    lambda new, rest=rest: rebuilt((*rest[0], new, *rest[1])),
                    into,
                    skipped,
                )
            if found:
                yield f"{path} with [-1] twice", partial(rebuilt, (*found, found[-1]))
            if len(found) > 1:
                yield f"{path} with [0] and [1] swapped", partial(rebuilt, (found[1], found[0], *found[2:]))
        case Mapping():
            for place, (key, part) in enumerate(found.items()):
                others = {k: v for k, v in found.items() if k != key}
                yield f"{path} without [{place}]", partial(rebuilt, others)
                yield from _planted(
                    f"{path}[{place}]", part, lambda new, key=key: rebuilt({**found, key: new}), into, skipped
                )
        case _ if is_dataclass(found) and isinstance(found, into):
            for field in fields(found):
                if field.init and field.name not in skipped:
                    name = field.name
                    yield from _planted(
                        f"{path}.{name}".lstrip("."),
                        getattr(found, name),
                        lambda new, name=name: rebuilt(replace(found, **{name: new})),
                        into,
                        skipped,
                    )
