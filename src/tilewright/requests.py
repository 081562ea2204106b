"""Fields of requests: each is stated once, and the command line's flags come from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

SUBJECT, PLANS, FILES = "Model and machine", "How to plan", "Files to write"
"""Panels of the command line's help: what is asked about, what planners are told, what is written."""


def asked(
    default: Any,
    help_text: str,
    *flags: str,
    panel: str | None = SUBJECT,
    key: bool = True,
    parse: Callable[[str], Any] | None = None,
    make: Callable[[], Any] | None = None,
    metavar: str | None = None,
    family: str = "",
    also: tuple[str, ...] = (),
    has_options: bool = False,
    is_expert: bool = False,
) -> Any:
    """A field of a request, with its default, or what can `make` that.

    `flags` are its names on the command line, in a `panel` of the help, or behind `--help-all` where that
    `is_expert`; `parse` reads the value from text.
    `key` says whether it can change the artifact and so belongs to its key. Names are those of the members of
    a `family`, and `also` others; `has_options` where a name may be followed by options in braces.
    """
    facts = {
        "help": help_text,
        "flags": flags,
        "panel": panel,
        "key": key,
        "parse": parse,
        "metavar": metavar,
        "family": family,
        "also": also,
        "has_options": has_options,
        "is_expert": is_expert,
    }
    return (
        field(default=default, metadata=facts)
        if make is None
        else field(default_factory=make, metadata=facts)
    )


def flag_of(record: type[Any], name: str) -> str:
    """What a field of a request is called where it is refused: its first flag, else its own name."""
    flags = next(f.metadata.get("flags") for f in fields(record) if f.name == name)
    return str(flags[0]) if flags else name


def types_of(record: type[Any]) -> Mapping[str, Any]:
    """The type of each field of a request."""
    hints = get_type_hints(record)
    return {f.name: hints[f.name] for f in fields(record)}


def typed_as(kind: Any) -> Any:
    """What a flag of a field of this type reads on the command line.

    >>> typed_as(tuple[int, ...]), typed_as(Path | str | None), typed_as(Literal["a", "b"])
    (list[int], str | None, <class 'str'>)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return str
    if origin is tuple:
        item: Any = str if arguments[0] is object else arguments[0]
        return list[item]
    if origin in (Union, UnionType):
        has_none = NoneType in arguments
        plain = next((a for a in (str, Path) if a in arguments), None)
        if plain is not None:
            return plain | None if has_none else plain
    return kind
