"""What is wrong with a machine description, in one line: where, what, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tilewright.hardware.machine import Machine
from tilewright.hardware.parts import (
    Axis,
    Format,
    Instructions,
    Level,
    MachinePart,
    Network,
    Overheads,
    Share,
    Threads,
    Unit,
)
from tilewright.text.suggestions import likely

PARTS: Mapping[str, type[MachinePart]] = {
    part.__name__.lower(): part
    for part in (Machine, Level, Share, Axis, Format, Unit, Network, Overheads, Threads, Instructions)
}
"""All parts, by the word for one of them."""

_UNDER: Mapping[str, str] = {
    "levels": "level",
    "shares": "share",
    "axes": "axis",
    "formats": "format",
    "units": "unit",
    "networks": "network",
    "overheads": "overheads",
    "threads": "threads",
    "instructions": "instructions",
}
_EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list, such as [a, b]",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}


def diagnostic(error: ValidationError) -> str:
    """The mistake that most likely explains the others, with its path, and how many others there are."""
    problems = _distinct(error.errors(include_url=False))
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    location, text = first["loc"], _explain(first)
    key, mark, rest = text.partition(": ")
    if mark and location and key in _part((*location, key)).model_fields:
        location, text = (*location, key), rest
    path = _path(location)
    return f"{f'{path}: ' if path else ''}{text}.{more}"


def _distinct(problems: Sequence[Any]) -> list[Any]:
    """Unknown keys first: one that is misspelt is missing too, which is not said twice. Of a list and its
    entry, the entry."""
    whole = {problem["loc"][:n] for problem in problems for n in range(len(problem["loc"]))}
    problems = [problem for problem in problems if problem["loc"] not in whole]
    unknown = [p for p in problems if p["type"] == "extra_forbidden"]
    meant = {(*p["loc"][:-1], key) for p in unknown for key in _meant(p["loc"])}
    wrong = [p for p in problems if p["type"] not in ("extra_forbidden", "missing")]
    missing = [p for p in problems if p["type"] == "missing" and p["loc"] not in meant]
    return [*unknown, *wrong, *missing]


def _path(location: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _explain(problem: Any) -> str:
    kind, location, given = problem["type"], problem["loc"], problem["input"]
    context = problem.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return f"unknown key; {_suggestion(location)}"
        case "missing":
            return f"is missing; add it ({_meaning(location)})"
        case "value_error":
            return str(context["error"]).rstrip(".")
        case "less_than_equal":
            return f"is too large: {_shown(given)}; at most {context['le']:.4g} is taken"
        case "greater_than":
            return f"is {_shown(given)}; write more than {context['gt']:g}"
        case "greater_than_equal":
            return f"is {_shown(given)}; write {context['ge']:g} or more"
        case "string_type":
            return f"is {_shown(given)}, no text; put it in quotes"
        case "string_too_short":
            return "is empty; write a name"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters; write a shorter name"
        case "too_short":
            return f"is too short; write at least {context['min_length']} of them"
        case "too_long":
            return f"is too long; write at most {context['max_length']} of them"
        case "literal_error" | "enum":
            return f"is {_shown(given)}; {_choice(str(given), str(context['expected']))}"
    if kind in _EXPECTED:
        is_number = isinstance(given, dict) and "number" in _EXPECTED[kind]
        also = " alone, or {value: ..., source: ...}" if is_number else ""
        return f"is {_shown(given)}; write {_EXPECTED[kind]}{also}"
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}; {_meaning(location)}"


def _shown(given: Any) -> str:
    match given:
        case bool():
            return str(given).lower()
        case str():
            return repr(given) if len(given) <= 40 else f"{given[:37]!r}..."
        case int() if len(text := str(given)) > 25:
            return f"{text[:3]}... ({len(text)} digits)"
        case int() | float():
            return str(given)
        case None:
            return "nothing"
        case list():
            return "a list"
        case dict():
            return "keys and values"
    return f"a {type(given).__name__}"


def _choice(given: str, expected: str) -> str:
    """The likely one of some choices, which pydantic lists as `'a', 'b' or 'c'`; else all."""
    choices = expected.replace(" or ", ", ").replace("'", "").split(", ")
    return likely(given, choices) or f"write one of {', '.join(choices)}"


def _part(location: Sequence[int | str]) -> type[MachinePart]:
    """The part whose key the last element of a location is."""
    names = [_UNDER[str(part)] for part in location[:-1] if part in _UNDER]
    return PARTS[names[-1] if names else "machine"]


def _meaning(location: Sequence[int | str]) -> str:
    """What the field's own text says of a key."""
    key = next((part for part in reversed(location) if isinstance(part, str)), "")
    field = _part(location).model_fields.get(key)
    text = (field.description or "") if field is not None else ""
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}" if text else "see docs/machines.md"


def _meant(location: Sequence[int | str]) -> list[str]:
    """Keys of the same part that an unknown key may stand for: often the same without its unit."""
    key, known = str(location[-1]), list(_part(location).model_fields)
    with_unit = [k for k in known if k.startswith(f"{key}_")]
    return with_unit or difflib.get_close_matches(key.lower(), known, n=2, cutoff=0.6)


def _suggestion(location: Sequence[int | str]) -> str:
    key = str(location[-1])
    meant = _meant(location)
    if meant:
        missing_unit = all(k.startswith(f"{key}_") for k in meant)
        names = " or ".join(meant)
        return f"its unit is missing, write {names}" if missing_unit else f"did you mean {names}"
    owners = [word for word, part in PARTS.items() if key in part.model_fields]
    if owners:
        return f"it belongs to a {' or a '.join(owners)}, move it there"
    return f"leave it out, or write one of {', '.join(_part(location).model_fields)}"
