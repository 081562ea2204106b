"""The options of a planner, pass or target: the fields of its frozen dataclass, as text and back.

What a value may be follows from the field's annotation: `int`, `float`, `bool`, `str`, `Literal`, `Spec`,
tuples of these, and unions. A field whose name ends in `_bytes` takes sizes such as `512KiB`. Fields of other
types are for code alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

from tilewright.errors import TilewrightError, UsageError
from tilewright.planning.spec import Spec, shown, split_items
from tilewright.records import dataclass
from tilewright.sizes import bytes_text, parse_bytes
from tilewright.text.suggestions import likely

T = TypeVar("T")

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf")
_PLAIN = re.compile(r"[^\s{}\[\],+=\"]+")
_NONE = "none"


def option(default: Any, about: str) -> Any:
    """A field of a member's dataclass with its default, and what to say of it where options are listed."""
    return dataclasses.field(default=default, metadata={"help": about})


@dataclass(frozen=True, slots=True)
class MemberOption:
    """One option of a member: its name, the annotation of its values, its default, what it does."""

    name: str
    kind: Any
    default: Any
    about: str

    @property
    def type_text(self) -> str:
        """What values it takes, in words."""
        return _words(self.kind, self.is_size)

    @property
    def default_text(self) -> str:
        """The default, as it would be written."""
        return self.text_of(self.default)

    @property
    def is_size(self) -> bool:
        """Whether whole numbers of it are bytes."""
        return self.name.endswith("_bytes")

    def parse(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            UsageError: none that this option takes.
        """
        try:
            return _read(text, self.kind, self.is_size)
        except _MismatchError as error:
            end = "" if str(error).endswith("?") else "."
            raise UsageError(f"{self.name}={_short(text)}: expected {error}{end}") from None

    def text_of(self, value: Any) -> str:
        """A value as text that `parse` reads."""
        return _written(value, self.kind, self.is_size)


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What there is to say of a member: its options, a line of help, the package it is from if a plugin."""

    name: str
    about: str
    options: tuple[MemberOption, ...] = ()
    plugin: str = ""


def options_of(member: object) -> tuple[MemberOption, ...]:
    """The options of a member, in the order of its fields; their defaults are the member's values.

    Raises:
        UsageError: an annotation that names something unknown.

    >>> @dataclass(frozen=True)
    ... class Half:
    ...     share: float = option(0.5, "How much of it.")
    >>> [(o.name, o.type_text, o.default_text, o.about) for o in options_of(Half())]
    [('share', 'number', '0.5', 'How much of it.')]
    """
    if not dataclasses.is_dataclass(member) or isinstance(member, type):
        return ()
    try:
        kinds = _kinds(type(member))
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{type(member).__name__}: an annotation cannot be resolved: {error}.") from error
    return tuple(
        MemberOption(f.name, kinds[f.name], getattr(member, f.name), str(f.metadata.get("help", "")))
        for f in dataclasses.fields(member)
        if f.init and _is_readable(kinds[f.name])
    )


@cache
def _kinds(member: type) -> Mapping[str, Any]:
    """The types of the fields of members, which a search asks for in each of its steps."""
    return typing.get_type_hints(member)


def info_of(name: str, member: object, plugin: str = "") -> MemberInfo:
    """What there is to say of a member: the first sentence of its class's docstring, and its options."""
    return MemberInfo(name, _first_sentence(type(member).__doc__ or ""), options_of(member), plugin)


def with_options(member: T, spec: Spec) -> T:
    """The member with the options of a spec in place of its own.

    Raises:
        UsageError: an option that it has not, or a value that does not fit; says which would.
    """
    if not spec.options:
        return member
    known = {o.name: o for o in options_of(member)}
    values: dict[str, Any] = {}
    for name, text in spec.options:
        if name not in known:
            raise UsageError(f"{spec.name}: unknown option {shown(name)}; {_meant(name, known)}")
        try:
            values[name] = known[name].parse(text)
        except UsageError as error:
            raise UsageError(f"{spec.name}: {error}") from None
    try:
        return typing.cast(T, dataclasses.replace(typing.cast(Any, member), **values))
    except TilewrightError:
        raise
    except Exception as error:
        raise UsageError(f"{spec.name}: its options are refused: {type(error).__name__}: {error}.") from error


def spec_of(name: str, default: object, member: object) -> Spec:
    """The spec with which `with_options` makes the member from the default one: only what differs is said."""
    texts = (
        (o.name, o.text_of(value))
        for o in options_of(default)
        if (value := getattr(member, o.name)) != o.default
    )
    return Spec(name, tuple(texts))


class _MismatchError(Exception):
    """A text that is no value of a kind; the message is what was expected instead."""


def _read(text: str, kind: Any, is_size: bool) -> Any:
    """The value of a kind that a text stands for."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_first(text, inner, is_size)
    if origin is Literal:
        return _read_choice(text, inner)
    if origin is tuple:
        return _read_tuple(text, inner, is_size)
    return _SCALARS[kind](text, is_size)


def _read_first(text: str, kinds: Sequence[Any], is_size: bool) -> Any:
    """By the first of several kinds that the text fits; `none` is none where that is one of them."""
    expected: list[str] = []
    for kind in sorted(kinds, key=lambda k: (k is not types.NoneType, k is str)):  # any text is a str
        try:
            return _read(text, kind, is_size)
        except _MismatchError as error:
            expected.append(str(error))
    raise _MismatchError(" or ".join(dict.fromkeys((*expected[1:], *expected[:1]))))


def _read_choice(text: str, choices: Sequence[Any]) -> Any:
    plain = _unquoted(text)
    for choice in choices:
        if plain == str(choice):
            return choice
    hint = likely(plain, map(str, choices))
    raise _MismatchError(f"{_alternatives(choices)}{f'; {hint}?' if hint else ''}")


def _read_tuple(text: str, inner: Sequence[Any], is_size: bool) -> tuple[Any, ...]:
    if text.startswith("[") and text.endswith("]"):
        items = split_items("a list", text[1:-1])
        if items[-1] == "":
            items.pop()
    else:
        items = split_items("a list", text, "+")
    is_open = len(inner) == 2 and inner[1] is Ellipsis
    kinds = [inner[0]] * len(items) if is_open else list(inner)
    if len(items) != len(kinds):
        raise _MismatchError(f"{len(kinds)} values, a+b or [a, b]")
    return tuple(_read(item, kind, is_size) for item, kind in zip(items, kinds, strict=True))


def _read_none(text: str, _: bool) -> None:
    if text != _NONE:
        raise _MismatchError(_NONE)


def _read_bool(text: str, _: bool) -> bool:
    if text.lower() not in ("true", "false"):
        raise _MismatchError("true or false")
    return text.lower() == "true"


def _read_int(text: str, is_size: bool) -> int:
    if _WHOLE.fullmatch(text):
        return int(text)
    if not is_size:
        raise _MismatchError("a whole number")
    try:
        return parse_bytes(text)
    except UsageError:
        raise _MismatchError("a size such as 512KiB") from None


def _read_float(text: str, _: bool) -> float:
    if not _NUMBER.fullmatch(text):
        raise _MismatchError("a number")
    return float(text)


def _read_str(text: str, _: bool) -> str:
    return _unquoted(text)


def _read_spec(text: str, _: bool) -> Spec:
    return Spec.parse(_unquoted(text))


_SCALARS: dict[Any, Callable[[str, bool], Any]] = {
    types.NoneType: _read_none,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
    Spec: _read_spec,
}


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        value = json.loads(text)
        value.encode()
    except (ValueError, AttributeError):
        raise _MismatchError('a text in quotes as in JSON, "..."') from None
    return str(value)


def _is_readable(kind: Any) -> bool:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return True
    if origin in (types.UnionType, typing.Union, tuple):
        return bool(inner) and all(k is Ellipsis or _is_readable(k) for k in inner)
    return kind in _SCALARS


def _written(value: Any, kind: Any, is_size: bool) -> str:
    """A value of a kind as text that `_read` reads as that kind."""
    if isinstance(value, tuple):
        inner = typing.get_args(_member_of_union(kind, tuple))
        is_open = len(inner) == 2 and inner[1] is Ellipsis
        kinds = [inner[0]] * len(value) if is_open else inner
        items = [_written(item, k, is_size) for item, k in zip(value, kinds, strict=True)]
        text = "+".join(items)
        is_plain = items and all(map(_PLAIN.fullmatch, items)) and _reads_as(text, kind, is_size, value)
        return text if is_plain else f"[{', '.join(items)}]"
    text = _plain(value, is_size)
    is_plain = not isinstance(value, str) or (bool(_PLAIN.fullmatch(text)) and text.isprintable())
    return text if is_plain and _reads_as(text, kind, is_size, value) else json.dumps(text)


def _plain(value: Any, is_size: bool) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and is_size:
        return bytes_text(value)
    return value if isinstance(value, str) else str(value) if isinstance(value, Spec) else repr(value)


def _reads_as(text: str, kind: Any, is_size: bool, value: object) -> bool:
    try:
        return bool(_read(text, kind, is_size) == value)
    except (_MismatchError, UsageError):
        return False


def _member_of_union(kind: Any, origin: Any) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(k for k in typing.get_args(kind) if typing.get_origin(k) is origin)
    return kind


def _words(kind: Any, is_size: bool) -> str:
    """What values of a kind are, in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        ordered = sorted(inner, key=lambda k: k is types.NoneType)
        return " or ".join(_words(k, is_size) for k in ordered)
    if origin is Literal:
        return _alternatives(inner)
    if origin is tuple:
        return f"list of {_words(inner[0], is_size)}"
    if kind is int and is_size:
        return "size"
    return _NAMES[kind]


_NAMES: dict[Any, str] = {
    types.NoneType: _NONE,
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Spec: "name with options",
}


def _alternatives(choices: Sequence[Any]) -> str:
    """Choices, as part of a sentence."""
    texts = [str(c) for c in choices]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _meant(name: str, known: Collection[str]) -> str:
    """What to write in place of an unknown option."""
    if not known:
        return "it has no options."
    guess = likely(name, known)
    return f"{guess}?" if guess else f"its options are {', '.join(known)}."


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0].rstrip(".")


def _short(text: str) -> str:
    return shown(text)[1:-1]
