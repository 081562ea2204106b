"""Dataclasses that are made when they are used are what the standard library's are."""

# mypy: disable-error-code="assignment, call-arg, misc"

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, InitVar, field
from typing import Any, ClassVar

import pytest

from tilewright.records import dataclass

KINDS = [
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "repr": False},
    {"slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "order": True},
]


def _point(decorator: Callable[..., Any], kind: dict[str, bool]) -> Any:
    class Point:
        """A point."""

        x: int
        y: float = 2.0
        tags: list[str] = field(default_factory=list, compare=False)
        note: str = field(default="", repr=False, kw_only=True)
        made: int = field(init=False, default=7)
        unit: ClassVar[str] = "m"

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", 8)

    return decorator(**kind)(Point)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def _behaviour(decorator: Callable[..., Any], kind: dict[str, bool]) -> dict[str, Any]:
    """What can be seen of a class that a decorator makes."""
    cls = _point(decorator, kind)

    def make(x: int, **named: Any) -> Any:
        return cls(x=x, **named) if kind.get("kw_only") else cls(x, **named)

    a, b, c = make(1), make(1, tags=["t"], note=""), make(1, y=3.0, note="n")
    return {
        "repr": repr(a) if kind.get("repr", True) else "",
        "equal": (a == b, a == c, a == 1, a != b),
        "hash": _outcome(lambda: hash(a) == hash(b)),
        "set": _outcome(lambda: setattr(a, "x", 5)),
        "delete": _outcome(lambda: delattr(c, "y")),
        "new": isinstance(_outcome(lambda: setattr(c, "other", 5)), tuple),
        "missing": _outcome(cls)[0],
        "unknown": _outcome(lambda: make(1, z=2))[0],
        "fields": [(f.name, f.init, f.kw_only) for f in dataclasses.fields(cls)],
        "dict": dataclasses.asdict(b),
        "replaced": dataclasses.asdict(dataclasses.replace(a, y=9.0)),
        "copied": dataclasses.asdict(copy.deepcopy(b)),
        "own list": make(1).tags is not make(1).tags,
        "slots": getattr(cls, "__slots__", None),
        "params": repr(cls.__dataclass_params__),
        "match": cls.__match_args__,
        "names": (cls.__qualname__, cls.__init__.__qualname__),
    }


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_behaves_as_the_standard_librarys(kind: dict[str, bool]) -> None:
    assert _behaviour(dataclass, kind) == _behaviour(dataclasses.dataclass, kind)


@dataclass(frozen=True, slots=True)
class Stored:
    """At the top of a module, so that it can be pickled."""

    x: int
    name: str = "n"


def test_other_processes_get_an_equal_one() -> None:
    assert pickle.loads(pickle.dumps(Stored(3))) == Stored(3)


def test_methods_of_the_class_are_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Name:
        text: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Name) and self.text.lower() == other.text.lower()

        def __hash__(self) -> int:
            return hash(self.text.lower())

        def __repr__(self) -> str:
            return f"<{self.text}>"

    assert {Name("A"), Name("a")} == {Name("a")}
    assert repr(Name("A")) == "<A>"


@pytest.mark.parametrize("derived", [dataclass, dataclasses.dataclass])
def test_a_subclass_has_the_fields_of_its_base_first(derived: Any) -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        x: int

    @derived(frozen=True, slots=True)
    class Derived(Base):
        y: int = 0

    made = Derived(1)
    assert (made.x, made.y) == (1, 0)
    assert made != Base(1)
    with pytest.raises(FrozenInstanceError):
        made.x = 2


def test_init_is_compiled_at_the_first_call() -> None:
    @dataclass(frozen=True, slots=True)
    class Late:
        x: int

    before = Late.__init__
    made = Late(1)
    assert Late.__init__ is not before
    before(made, 2)  # who kept the first gets the same
    assert made == Late(2)


def _initial(decorator: Callable[..., Any]) -> int:
    @decorator()
    class Sum:
        x: int
        y: InitVar[int] = 3

        def __post_init__(self, y: int) -> None:
            self.x += y

    @decorator()
    class Derived(Sum):
        z: int = 0

    return Sum(1).x * 10 + Derived(2, 5).x


def _thawed_base(decorator: Callable[..., Any]) -> None:
    @decorator()
    class Base:
        x: int

    @decorator(frozen=True)
    class Derived(Base):
        y: int


def _own_setter(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True)
    class Written:
        x: int

        def __setattr__(self, name: str, value: object) -> None: ...


@pytest.mark.parametrize("make", [_initial, _thawed_base, _own_setter])
def test_what_is_seldom_asked_for_is_as_in_the_standard_library(make: Callable[..., Any]) -> None:
    assert _outcome(lambda: make(dataclass)) == _outcome(lambda: make(dataclasses.dataclass))
