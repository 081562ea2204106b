"""Metadata of requests' fields: each is stated once, and the command line's flags come from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

SUBJECT, PLANS, FILES = "Model and machine", "How to plan", "Files to write"
"""Panels of the command line's help: what is asked about, what planners are told, what is written."""


def asked(
    help_text: str,
    *flags: str,
    panel: str | None = SUBJECT,
    key: bool = True,
    parse: Callable[[str], Any] | None = None,
    typed: Any = None,
    metavar: str | None = None,
    family: str = "",
    also: tuple[str, ...] = (),
    has_options: bool = False,
    is_expert: bool = False,
) -> dict[str, Any]:
    """Metadata of a field.

    `flags` are its names on the command line, in a `panel` of the help, or behind `--help-all` where that
    `is_expert`; `parse` reads the value from text, and `typed` is what is typed there where the field's own
    type says more (a path or a machine).
    `key` says whether it can change the artifact and so belongs to its key. Names are those of the members of
    a `family`, and `also` others; `has_options` where a name may be followed by options in braces.
    """
    return {
        "help": help_text,
        "flags": flags,
        "panel": panel,
        "key": key,
        "parse": parse,
        "typed": typed,
        "metavar": metavar,
        "family": family,
        "also": also,
        "has_options": has_options,
        "is_expert": is_expert,
    }


def flag_of(record: type[Any], name: str) -> str:
    """What a field of a request is called where it is refused: its first flag, else its own name."""
    flags = next(f.metadata.get("flags") for f in fields(record) if f.name == name)
    return str(flags[0]) if flags else name
