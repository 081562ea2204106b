"""Plain values from a file to the types of the program: the annotations say what each field may be.

Nothing is converted on the way: a number is no text, true is no number, and a dataclass is an object with its
fields. A field that does not fit is one error, which names it: `steps[3].kernels[0].macs`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Literal, NewType, TypeVar, cast

from tilewright.ir.dtype import DType

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
"""Of sizes, positions and counts, which are never negative."""

Signed = NewType("Signed", int)
"""A whole number that may be negative, as a stride may."""

MAX_DOCUMENT_BYTES = 64 << 20
"""Of a JSON document in an artifact; parsed, it takes some ten times as much memory."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN_CHARS = 40
_SHOWN_BITS = 128

Decoder = Callable[[Any], Any]
"""Containers read their items plainly, and again one by one to name the item if that fails: it is faster."""


class FieldError(ValueError):
    """A field that is missing or of another type, by its path from the document's root."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.lstrip('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def within(self, step: str | int) -> FieldError:
        """The same error, seen from the container of the field."""
        return FieldError(self.problem, f"{f'[{step}]' if isinstance(step, int) else f'.{step}'}{self.path}")


def parsed_json(data: bytes) -> Any:
    """A JSON document as the standard has it: no NaN, no infinities, no key twice.

    Raises:
        ValueError, RecursionError: it is none.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise FieldError(f"{len(data)} bytes, more than {MAX_DOCUMENT_BYTES} (MAX_DOCUMENT_BYTES)")
    return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:_SHOWN_CHARS]!r} is there twice")
    return found


def decoded(kind: type[T], document: Any) -> T:
    """A value of a type: texts, numbers, enumerations, tuples, mappings and dataclasses of them.

    Fields of a dataclass that have a default may be missing, and fields that it does not have are ignored, so
    that later releases can add some.

    Raises:
        FieldError: naming the field.

    >>> decoded(tuple[int, ...], [1, 2])
    (1, 2)
    >>> decoded(tuple[int, ...], [1, "2"])
    Traceback (most recent call last):
    tilewright.fields.FieldError: [1]: expected a whole number from 0 to 2^63-1, found '2'
    """
    return cast(T, _decoder(cast(Any, kind))(document))


def field_of(document: Any, name: str, kind: Any) -> Any:
    """A field of an object."""
    if not isinstance(document, dict):
        raise _expected("an object", document)
    if name not in document:
        raise FieldError("is missing", f".{name}")
    return _inside(name, _decoder(kind), document[name])


@contextlib.contextmanager
def inside(step: str) -> Iterator[None]:
    """Errors of fields within are those of fields of `step`."""
    try:
        yield
    except FieldError as error:
        raise error.within(step) from None


def sha256_text(text: str) -> str:
    """A SHA-256 in hex."""
    if not _SHA256.fullmatch(text):
        raise _expected("a SHA-256 in hex", text)
    return text


def _expected(what: str, found: Any) -> FieldError:
    return FieldError(f"expected {what}, found {_shown(found)}")


def _shown(found: Any) -> str:
    match found:
        case str():
            return repr(found[:_SHOWN_CHARS])
        case list():
            return f"a list of {len(found)}"
        case dict():
            return "an object"
        case int() if found.bit_length() > _SHOWN_BITS:
            return f"a number of {found.bit_length()} bits"
    return json.dumps(found)


def _inside(step: str | int, decoder: Decoder, document: Any) -> Any:
    try:
        return decoder(document)
    except FieldError as error:
        raise error.within(step) from None


@functools.cache
def _decoder(kind: Any) -> Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _union_decoder(arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin in (dict, Mapping):
        return _mapping_decoder(_decoder(arguments[1]))
    if kind is Any:
        return lambda document: document
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is DType:
        return _dtype
    if isinstance(kind, type) and issubclass(kind, Enum):
        choose = _one_of(tuple(member.value for member in kind))
        return lambda document: kind(choose(document))
    return _dataclass_decoder(kind)


def _union_decoder(arguments: tuple[Any, ...]) -> Decoder:
    """Of `T | None`, and of plain types: the first that fits."""
    has_none = types.NoneType in arguments
    *others, last = (_decoder(a) for a in arguments if a is not types.NoneType)

    def any_of_them(document: Any) -> Any:
        if has_none and document is None:
            return None
        for decode in others:
            with contextlib.suppress(FieldError):
                return decode(document)
        return last(document)

    return any_of_them


def _tuple_decoder(arguments: tuple[Any, ...]) -> Decoder:
    if arguments[-1] is Ellipsis:
        decode = _decoder(arguments[0])

        def all_items(document: Any) -> tuple[Any, ...]:
            if not isinstance(document, list):
                raise _expected("a list", document)
            try:
                return tuple([decode(item) for item in document])
            except FieldError:
                return tuple(_inside(i, decode, item) for i, item in enumerate(document))

        return all_items
    decoders = tuple(map(_decoder, arguments))

    def these_items(document: Any) -> tuple[Any, ...]:
        if not isinstance(document, list) or len(document) != len(decoders):
            raise _expected(f"a list of {len(decoders)}", document)
        return tuple(_inside(i, d, item) for i, (d, item) in enumerate(zip(decoders, document, strict=True)))

    return these_items


def _mapping_decoder(decode: Decoder) -> Decoder:
    def mapping(document: Any) -> dict[str, Any]:
        if not isinstance(document, dict):
            raise _expected("an object", document)
        try:
            return {name: decode(item) for name, item in document.items()}
        except FieldError:
            return {name: _inside(name[:_SHOWN_CHARS], decode, item) for name, item in document.items()}

    return mapping


def _dataclass_decoder(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    members = [
        (
            f.name,
            _decoder(hints[f.name]),
            f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
        )
        for f in dataclasses.fields(kind)
    ]

    def record(document: Any) -> Any:
        if not isinstance(document, dict):
            raise _expected("an object", document)
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, decode, is_required in members:
                if name in document:
                    values[name] = decode(document[name])
                elif is_required:
                    raise FieldError("is missing")
        except FieldError as error:
            raise error.within(name) from None
        return kind(**values)

    return record


def _one_of(choices: tuple[Any, ...]) -> Decoder:
    def choose(document: Any) -> Any:
        if not isinstance(document, str) or document not in choices:
            raise _expected(f"one of {', '.join(map(str, choices))}", document)
        return document

    return choose


def _text(document: Any) -> str:
    if not isinstance(document, str):
        raise _expected("a text", document)
    if not document.isascii():
        try:
            document.encode()
        except UnicodeEncodeError:
            raise FieldError("expected a text, found half of a surrogate pair") from None
    return document


def _whole(document: Any) -> int:
    if type(document) is not int or not 0 <= document <= MAX_INTEGER:
        raise _expected("a whole number from 0 to 2^63-1", document)
    return document


def _signed(document: Any) -> int:
    if type(document) is not int or not -MAX_INTEGER <= document <= MAX_INTEGER:
        raise _expected("a whole number from -2^63+1 to 2^63-1", document)
    return document


def _float(document: Any) -> float:
    if type(document) not in (int, float) or not abs(document) <= MAX_FLOAT or math.isnan(document):
        raise _expected("a finite number", document)
    return float(document)


def _flag(document: Any) -> bool:
    if type(document) is not bool:
        raise _expected("true or false", document)
    return document


def _dtype(document: Any) -> DType:
    name = _text(document)
    if name != name.lower() or name.upper() not in DType.__members__:
        raise _expected("an element type", document)
    return DType[name.upper()]


MAX_FLOAT = 1.7976931348623157e308
_PLAIN: dict[Any, Decoder] = {str: _text, int: _whole, Signed: _signed, float: _float, bool: _flag}
