"""Dataclasses whose methods are made when they are first used.

The standard library compiles up to six functions for each dataclass while a module is imported, which takes
0.3 ms; of the classes that a run imports, many are never made and most compare, hash or print nothing.
`dataclass` is the standard decorator for type checkers and for `fields`, `replace` and `asdict`; comparison,
hash and text here are ordinary functions over the fields, and `__init__` is compiled at the first call. A
class that asks for more (`order`, `unsafe_hash`, `weakref_slot`, an `InitVar`), that is frozen and derives
from a dataclass, or that derives from a frozen one is the standard library's own.

Compiling a model of two operators takes 1.42 s of processor instead of 1.56 s, a quick first answer 0.37 s
instead of 0.40 s. Until a class is first made, `inspect.signature` shows no names of its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """As `dataclasses.dataclass`: frozen, with slots, compared by its fields, as the options say."""
        if cls is None:
            return lambda decorated: _made(decorated, **options)
        return _made(cls, **options)


_STANDARD = frozenset({"order", "unsafe_hash", "weakref_slot"})
"""Options that leave a class to the standard library."""


def _made(
    cls: Any,
    *,
    init: bool = True,
    repr: bool = True,  # the standard option's name
    eq: bool = True,
    frozen: bool = False,
    **others: Any,
) -> Any:
    own = vars(cls)
    params = [getattr(base, "__dataclass_params__", None) for base in cls.__mro__[1:]]
    hints = [hint for base in cls.__mro__ for hint in getattr(base, "__annotations__", {}).values()]
    if (
        not init
        or _STANDARD & set(others)
        or any(found is not None and (frozen or found.frozen) for found in params)
        or (frozen and ("__setattr__" in own or "__delattr__" in own))
        or any("InitVar" in str(hint) for hint in hints)
    ):
        return dataclasses.dataclass(init=init, repr=repr, eq=eq, frozen=frozen, **others)(cls)
    # What is found in the class is kept; a copy with slots is made below, so this is read before.
    defined = {name for name in _METHODS if name in own}
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, **others)(cls)
    known = cls.__dataclass_params__
    known.init, known.repr, known.eq, known.frozen = init, repr, eq, frozen
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = {"__init__": _init(cls, frozen=frozen)}
    if repr:
        methods["__repr__"] = _repr(fields)
    if eq:
        compared = _values_of([field for field in fields if field.compare])
        methods["__eq__"] = _eq(compared)
        hashed = [field for field in fields if (field.compare if field.hash is None else field.hash)]
        methods["__hash__"] = _hash(_values_of(hashed)) if frozen else None
        if "__eq__" in defined:
            defined.discard("__hash__" if own["__hash__"] is None else "")
    if frozen:
        names = frozenset(field.name for field in fields)
        methods["__setattr__"], methods["__delattr__"] = _frozen(cls, names)
        if others.get("slots"):
            methods["__getstate__"], methods["__setstate__"] = _state([field.name for field in fields])
    for name, method in methods.items():
        if name not in defined:
            if method is not None:
                method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
    return cls


_METHODS = (
    "__init__",
    "__repr__",
    "__eq__",
    "__hash__",
    "__setattr__",
    "__delattr__",
    "__getstate__",
    "__setstate__",
)


def _init(cls: type, *, frozen: bool) -> Callable[..., None]:
    """What compiles the real `__init__`, puts itself in its place and calls it."""

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        if vars(cls)["__init__"] is __init__:
            type.__setattr__(cls, "__init__", _compiled_init(cls, frozen=frozen))
        vars(cls)["__init__"](self, *arguments, **named)

    return __init__


def _compiled_init(cls: type, *, frozen: bool) -> Callable[..., None]:
    """An `__init__` as the standard library writes it."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_made_anew": _MADE_ANEW}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    lines: list[str] = []
    for number, field in enumerate(dataclasses.fields(cls)):
        value = field.name
        if field.default is not MISSING:
            known[f"_default_{number}"] = field.default
            parameter = f"{field.name}=_default_{number}"
        elif field.default_factory is not MISSING:
            known[f"_factory_{number}"] = field.default_factory
            parameter = f"{field.name}=_made_anew"
            value = f"_factory_{number}() if {field.name} is _made_anew else {field.name}"
        else:
            parameter = field.name
        if field.init:
            parameters[bool(field.kw_only)].append(parameter)
        elif field.default_factory is not MISSING:
            value = f"_factory_{number}()"
        elif field.default is not MISSING and hasattr(cls, "__slots__"):
            value = f"_default_{number}"
        else:
            continue
        self_set = f"_set(_self, {field.name!r}, {value})" if frozen else f"_self.{field.name} = {value}"
        lines.append(f"  {self_set}")
    if hasattr(cls, "__post_init__"):
        lines.append("  _self.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    header = f"def __init__({', '.join(['_self', *parameters[False], *named])}):"
    exec("\n".join([header, *lines, "  pass"]), known)  # names of fields are identifiers
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


_MADE_ANEW = object()
"""Stands for an argument that was not given, where a factory makes the value."""


def _values_of(fields: list[Field[Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """The values of an object's fields."""
    if not fields:
        return lambda _self: ()
    get = attrgetter(*(field.name for field in fields))
    return get if len(fields) > 1 else lambda self: (get(self),)


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _repr(fields: tuple[Field[Any], ...]) -> Callable[[Any], str]:
    names = [field.name for field in fields if field.repr]

    def __repr__(self: Any) -> str:  # noqa: N807
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return recursive_repr()(__repr__)


def _frozen(cls: Any, names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _state(names: list[str]) -> tuple[Callable[[Any], list[Any]], Callable[[Any, list[Any]], None]]:
    """How copies and other processes get an object that may not be assigned to."""

    def __getstate__(self: Any) -> list[Any]:  # noqa: N807
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any] | Mapping[str, Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return __getstate__, __setstate__
