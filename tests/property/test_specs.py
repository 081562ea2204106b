"""Planners as text: what is printed is read back, and any other text is an error of one line."""

import contextlib
import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.mapping import MAPPERS
from tilewright.memory import MEMORY_PLANNERS
from tilewright.partition import PARTITIONERS
from tilewright.passes import PASSES
from tilewright.planning import Spec
from tilewright.planning.member_options import options_of, spec_of, with_options
from tilewright.registry import Registry
from tilewright.schedule import SCHEDULERS
from tilewright.targets import TARGETS

T = TypeVar("T")
FAMILIES: tuple[Registry[Any], ...] = (PARTITIONERS, SCHEDULERS, MEMORY_PLANNERS, MAPPERS, PASSES, TARGETS)
CHARACTERS = tuple('aZ_1.-+=,{}[]" \\\n\x00é\u202e')
MEMBERS = [(family, name) for family in FAMILIES for name in family.built_in_names()]


@dataclass(frozen=True)
class EveryKind:
    """A member with an option of each kind."""

    whole: int = 3
    number: float = 0.5
    switch: bool = True
    text: str = ""
    choice: Literal["a", "b c", "none"] = "a"
    limit: float | None = None
    size_bytes: int | None = None
    label: str | int | None = None
    names: tuple[str, ...] = ("x",)
    pair: tuple[int, float] = (1, 2.0)
    nested: tuple[tuple[int, ...], ...] = ()
    several: int | tuple[int, ...] = 4
    inner: Spec | None = None
    not_an_option: dict[str, int] = dataclasses.field(default_factory=dict)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(k) for k in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        if inner[1:] == (Ellipsis,):
            return st.lists(values_of(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(values_of, inner))
    scalars: dict[Any, st.SearchStrategy[Any]] = {
        types.NoneType: st.none(),
        bool: st.booleans(),
        int: st.integers(-(2**40), 2**40) | st.integers(0, 64).map(lambda n: n * 1024),
        float: st.floats(allow_nan=False),
        str: st.text(st.sampled_from(CHARACTERS), max_size=8) | st.sampled_from(["none", "true", "1"]),
        Spec: st.sampled_from(["none", "graphturbo{alpha=2, dims=any}"]).map(Spec.parse),
    }
    return scalars[kind]


@settings(deadline=None)  # the first example loads the member
@given(st.data())
def test_what_is_printed_is_read_back(data: st.DataObject) -> None:
    default = EveryKind()
    options = options_of(default)
    assert [o.name for o in options] == [f.name for f in dataclasses.fields(default)][:-1]
    chosen = data.draw(st.lists(st.sampled_from(options), unique_by=lambda o: o.name))
    member = dataclasses.replace(default, **{o.name: data.draw(values_of(o.kind)) for o in chosen})
    spec = spec_of("every", default, member)
    assert Spec.parse(str(spec)) == spec
    assert with_options(default, spec) == member


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("family", "name"), MEMBERS, ids=[f"{f.kind}-{n}" for f, n in MEMBERS])
@settings(deadline=None)  # the first example loads the member
@given(data=st.data())
def test_every_member_is_its_printed_text(family: Registry[Any], name: str, data: st.DataObject) -> None:
    member = family.get(name)
    for option in family.options(name):
        with contextlib.suppress(UsageError):  # out of the range that this member takes: it keeps its default
            member = dataclasses.replace(member, **{option.name: data.draw(values_of(option.kind))})
    text = str(family.spec_of(name, member))
    assert family.get(text) == member
    assert family.canonical(text) == text


@given(st.text(st.sampled_from('ab{}[]=,+"\\ \n1.'), max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    spec = made(lambda: Spec.parse(text))
    assert spec is None or Spec.parse(str(spec)) == spec


@given(st.sampled_from([o.name for o in options_of(EveryKind())]), st.text(st.sampled_from(CHARACTERS)))
def test_any_value_is_read_or_refused_in_one_line(name: str, value: str) -> None:
    member = made(lambda: with_options(EveryKind(), Spec("every", ((name, value),))))
    assert member is None or with_options(EveryKind(), spec_of("every", EveryKind(), member)) == member


def made(make: Callable[[], T]) -> T | None:
    """What is made; none if that is refused, in one line."""
    try:
        return make()
    except UsageError as error:
        lines = str(error).splitlines()
    assert len(lines) == 1
    return None
