"""What callers give, against the annotations of what they call: one typed error instead of Python's.

    @checked
    def load(path: str | os.PathLike[str], threads: int | None = None) -> Model: ...

Numbers of numpy become Python's, texts that name files become what the system can open or an error, and the
items of sequences and mappings are looked at where they are annotated.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from tilewright.errors import UsageError
from tilewright.system.memory_errors import memory_errors_typed

if TYPE_CHECKING:
    import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

_SHOWN_CHARS = 60
_SHOWN_NAMES = 5

NOWHERE: Mapping[str, np.ndarray[Any, Any]] = {}
"""No arrays to write outputs to: every one gets a new one."""


class _MismatchError(Exception):
    """A value that is not what its annotation says; the text is what was expected instead."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function behind a look at its arguments; annotations are read at the first call.

    Raises (when called):
        UsageError: naming the argument, what was expected and what was given.
        OutOfMemory: memory ends in the function.

    >>> @checked
    ... def half(number: int) -> float:
    ...     return number / 2
    >>> half("4")
    Traceback (most recent call last):
    tilewright.errors.UsageError: number: expected a whole number, found '4'.
    """
    signature = inspect.signature(function)

    @functools.cache
    def kinds() -> dict[str, Any]:
        scope = vars(sys.modules[function.__module__])
        return {name: _resolved(p.annotation, scope) for name, p in signature.parameters.items()}

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError as error:
            raise UsageError(f"{function.__name__}: {error}.") from None
        expected = kinds()
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(argument(name, v, expected[name]) for v in value)
            elif kind is not inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = argument(name, value, expected[name])
        with memory_errors_typed():
            return function(*bound.args, **bound.kwargs)

    return call


def _resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    """The annotation itself; a name that is imported for type checkers only counts as anything."""
    if annotation is inspect.Parameter.empty:
        return Any
    return eval(annotation, {}, _Scope(scope)) if isinstance(annotation, str) else annotation


class _Scope(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Anything())


class _Anything:
    """What a name stands for that nothing was imported for: any value fits it, and whatever is made of it."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, item: Any) -> _Anything:
        return self

    def __or__(self, other: Any) -> _Anything:
        return self

    __ror__ = __or__


def argument(name: str, value: Any, kind: Any) -> Any:
    """A value as its annotation says.

    Raises:
        UsageError: it is something else.

    >>> argument("threads", 2, int | None)
    2
    """
    try:
        return _fitted(value, kind)
    except _MismatchError as error:
        raise UsageError(f"{name}: expected {error}, found {shown(value)}.") from None


def require_fields(record: type[Any], settings: Iterable[str]) -> None:
    """Refuse settings that are no fields of a record.

    Raises:
        UsageError: an unknown setting; the message says what it may mean.
    """
    from tilewright.text.suggestions import likely

    known = [f.name for f in dataclasses.fields(record)]
    for name in settings:
        if name not in known:
            guess = likely(name, known)
            hint = f"{guess}?" if guess else f"known: {', '.join(known)}."
            raise UsageError(f"unknown setting {name!r}: {hint}")


def shown(value: object) -> str:
    """A value in an error: short, on one line, whatever its own text would do."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        if isinstance(value, int) and value.bit_length() > 128:
            return f"a number of {value.bit_length()} bits"
        text = repr(value[: _SHOWN_CHARS + 1] if isinstance(value, str | bytes) else value)
        return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    return f"a {type(value).__name__}"


def missing_input(name: str, names: Sequence[str], feed: Mapping[str, object]) -> UsageError:
    """The error of a feed that lacks an input: what the model needs, and what was given instead.

    >>> str(missing_input("x", ["x", "y"], {"X": 0, "y": 1}))
    "input 'x' is missing: this model needs x, y; it was given 'X'."
    """
    others = [shown(given) for given in feed if given not in names]
    more = f" and {len(others) - _SHOWN_NAMES} more" if len(others) > _SHOWN_NAMES else ""
    given = f"; it was given {', '.join(others[:_SHOWN_NAMES])}{more}" if others else ""
    return UsageError(f"input {name!r} is missing: this model needs {', '.join(names)}{given}.")


def as_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """What an input was given as an array, which shares its memory where it can.

    Raises:
        UsageError: nothing that numpy makes one array of.
    """
    from tilewright.dlpack import as_numpy

    try:
        return as_numpy(value)
    except Exception as error:  # whatever `__array__` of a caller's class raises
        reason = " ".join(str(error).split())[:_SHOWN_CHARS]
        raise UsageError(f"input {name!r}: {shown(value)} is no array ({reason}).") from error


def _fitted(value: Any, kind: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _fitted_to_one(value, inner)
    if origin is Literal:
        if not isinstance(value, str) or value not in inner:
            raise _MismatchError(_words(kind))
        return value
    base = origin or kind
    if base is Any or not isinstance(base, type):
        return value
    fit = _FITS.get(base)
    if fit is not None:
        return fit(value, inner)
    if not isinstance(value, base):
        raise _MismatchError(_words(kind))
    return value


def _fitted_to_one(value: Any, kinds: tuple[Any, ...]) -> Any:
    """The first of several kinds that fits; a text that may be a path must be one, and becomes one where a
    text would not do.
    """
    is_path = any((typing.get_origin(k) or k) in (os.PathLike, Path) for k in kinds)
    if is_path and isinstance(value, str | os.PathLike):
        takes_text = str in kinds or Path not in kinds
        return _as_path(value, ()) if takes_text else _made_path(value, ())
    said: list[str] = []
    for kind in kinds:
        if is_path and kind is str:
            continue
        try:
            return _fitted(value, kind)
        except _MismatchError as error:
            said.append(str(error))
    raise _MismatchError(" or ".join(dict.fromkeys(said)))


def _as_flag(value: Any, _: tuple[Any, ...]) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):
        raise _MismatchError("True or False")
    return bool(value)


def _as_whole(value: Any, _: tuple[Any, ...]) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _MismatchError("a whole number")
    return operator.index(value)


def _as_number(value: Any, _: tuple[Any, ...]) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _MismatchError("a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > cast(Any, 0) else -math.inf


def _as_text(value: Any, _: tuple[Any, ...]) -> str:
    if not isinstance(value, str):
        raise _MismatchError("a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MismatchError("a text that UTF-8 can hold") from None
    return value


def _as_bytes(value: Any, _: tuple[Any, ...]) -> Any:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _MismatchError("bytes")
    return value


def _as_path(value: Any, _: tuple[Any, ...]) -> Any:
    try:
        text = os.fspath(value)
        good = isinstance(text, str) and b"\0" not in os.fsencode(text)
    except (TypeError, UnicodeEncodeError):
        good = False
    if not good:
        raise _MismatchError("a path")
    return value


def _made_path(value: Any, _: tuple[Any, ...]) -> Path:
    path = _as_path(value, ())
    if not os.fspath(path):  # of which `Path` makes the working folder
        raise _MismatchError("a path")
    return Path(path)


def _as_sequence(value: Any, inner: tuple[Any, ...]) -> Any:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, collections.abc.Iterable):
        raise _MismatchError(_words(Sequence))
    if not inner or inner[0] is Any:
        return value
    return tuple(_fitted(item, inner[0]) for item in value)


def _as_mapping(value: Any, inner: tuple[Any, ...]) -> Any:
    if not isinstance(value, Mapping):
        raise _MismatchError(_words(Mapping))
    if not inner:
        return value
    return {_fitted(k, inner[0]): _fitted(v, inner[1]) for k, v in value.items()}


def _as_callable(value: Any, _: tuple[Any, ...]) -> Any:
    if not callable(value):
        raise _MismatchError("a function")
    return value


_FITS: dict[type, Callable[[Any, tuple[Any, ...]], Any]] = {
    bool: _as_flag,
    int: _as_whole,
    float: _as_number,
    str: _as_text,
    bytes: _as_bytes,
    tuple: _as_sequence,
    cast(type, Sequence): _as_sequence,
    cast(type, Mapping): _as_mapping,
    cast(type, collections.abc.Callable): _as_callable,
    cast(type, os.PathLike): _as_path,
    Path: _made_path,
}


def _words(kind: Any) -> str:
    """What an annotation asks for, in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if kind is types.NoneType:
        return "None"
    if (origin or kind) is Sequence:
        return "a list"
    if (origin or kind) is Mapping:
        return "a mapping"
    return f"a {getattr(origin or kind, '__name__', kind)}"
