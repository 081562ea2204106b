"""A planner, pass or target as people write it: its name, and options where they differ from the defaults.

    graphturbo
    graphturbo{alpha=1.25, dims=any}
    name{list=a+b, other=[1.5, 2], text="with, commas", inner=graphturbo{alpha=2}}

This file is the syntax. What options there are and which values they take, `member_options.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from tilewright.errors import UsageError
from tilewright.records import dataclass

MAX_CHARS = 4096
MAX_DEPTH = 8
_SHOWN_CHARS = 60
_CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Spec:
    """A name with the texts of options, as written.

    >>> spec = Spec.parse("graphturbo{ alpha = 1.25, dims=any }")
    >>> spec.name, spec.options, str(spec)
    ('graphturbo', (('alpha', '1.25'), ('dims', 'any')), 'graphturbo{alpha=1.25, dims=any}')
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name, with options or without.

        Raises:
            UsageError: any other text, an option that is given twice, or too much text or nesting.
        """
        if len(text) > MAX_CHARS:
            raise UsageError(f"{shown(text)}: has {len(text)} characters; at most {MAX_CHARS} are read.")
        name, brace, rest = text.strip().partition("{")
        name = name.strip()
        if not name or not name.isprintable() or any(c in name for c in '}"'):
            raise UsageError(f"{shown(text)}: expected a name, or a name with options: name{{option=value}}.")
        if not brace:
            return cls(name)
        label = name if len(name) <= _SHOWN_CHARS else f"{name[: _SHOWN_CHARS - 3]}..."
        inside, end = _up_to_closing(label, rest)
        if end:
            raise UsageError(f"{label}: {shown(end)} stands behind the closing brace; leave it out.")
        return cls(name, tuple(_options(label, inside)))

    def with_options(self, **options: str) -> Self:
        """The same with these options, whatever was said of them.

        >>> str(Spec.parse("stcp920{overlap=none, mapper=cosa}").with_options(mapper="paper"))
        'stcp920{overlap=none, mapper=paper}'
        """
        return type(self)(self.name, tuple((dict(self.options) | options).items()))

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}{{{', '.join(f'{key}={value}' for key, value in self.options)}}}"


def split_items(name: str, text: str, separator: str = ",") -> list[str]:
    """Text between separators, except for those inside of quotes, braces and brackets; without spaces around.

    Raises:
        UsageError: brackets that do not match, quotes that do not end, or too much nesting; says `name`.

    >>> split_items("p", 'a, b{c, d}, "e, f"')
    ['a', 'b{c, d}', '"e, f"']
    """
    items, start = [], 0
    for place, character in _outside(name, text):
        if character == separator:
            items.append(text[start:place].strip())
            start = place + 1
    items.append(text[start:].strip())
    return items


def shown(text: str) -> str:
    """A text given by a user, quoted, short enough for an error."""
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}...")


def _options(name: str, inside: str) -> Iterator[tuple[str, str]]:
    items = split_items(name, inside)
    if items[-1] == "":  # nothing in the braces, or a comma at the end
        items.pop()
    seen: set[str] = set()
    for item in items:
        key, sign, value = (part.strip() for part in item.partition("="))
        key = key.replace("-", "_")
        if not key.isidentifier() or not sign or not value:
            raise UsageError(f"{name}: {shown(item)} is no option; write option=value.")
        if key in seen:
            raise UsageError(f"{name}: option {key} is given twice.")
        seen.add(key)
        yield key, value


def _up_to_closing(name: str, rest: str) -> tuple[str, str]:
    """What is before the brace that closes the options, and what is behind it."""
    for place, character in _outside(name, rest, opened=("}",)):
        if character == "}":
            return rest[:place], rest[place + 1 :].strip()
    raise UsageError(f"{name}: the brace of its options is not closed.")


def _outside(name: str, text: str, opened: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    """Characters outside of quotes and brackets; of brackets, those that close what was `opened` before."""
    waiting = list(opened)
    is_quoted = is_escaped = False
    for place, character in enumerate(text):
        if is_quoted:
            is_quoted = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            is_quoted = True
        elif character in _CLOSING:
            waiting.append(_CLOSING[character])
            if len(waiting) > MAX_DEPTH:
                raise UsageError(f"{name}: braces and brackets lie more than {MAX_DEPTH} deep.")
        elif character in "}]":
            if not waiting or waiting.pop() != character:
                raise UsageError(f"{name}: {shown(character)} closes nothing.")
            if not waiting and opened:
                yield place, character
        elif len(waiting) == len(opened):
            yield place, character
    if is_quoted or (waiting and not opened):
        raise UsageError(f"{name}: a {'quote' if is_quoted else 'brace or bracket'} is not closed.")
