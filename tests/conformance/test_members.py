"""Every member can be listed: it is a frozen dataclass that says what it and its options do."""

# mypy: disable-error-code="union-attr"

import dataclasses
from typing import Any

import pytest

from tilewright.mapping import MAPPERS
from tilewright.memory import MEMORY_PLANNERS
from tilewright.partition import PARTITIONERS
from tilewright.passes import PASSES
from tilewright.registry import Registry
from tilewright.schedule import SCHEDULERS
from tilewright.targets import TARGETS

FAMILIES: tuple[Registry[Any], ...] = (PARTITIONERS, SCHEDULERS, MEMORY_PLANNERS, MAPPERS, PASSES, TARGETS)
MEMBERS = [pytest.param(f, n, id=f"{f.kind}-{n}") for f in FAMILIES for n in f.built_in_names()]


@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_a_member_is_frozen_and_says_what_it_does(family: Registry[Any], name: str) -> None:
    member = family.get(name)
    assert dataclasses.is_dataclass(member)
    assert type(member).__dataclass_params__.frozen
    assert member.name == name
    info = family.info(name)
    assert 10 < len(info.about) < 200
    assert "\n" not in info.about
    assert info.plugin == ""


@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_every_field_of_a_member_is_an_option_that_is_explained(family: Registry[Any], name: str) -> None:
    options = family.options(name)
    fields = [f.name for f in dataclasses.fields(family.get(name)) if f.init]
    assert [o.name for o in options] == fields
    for option in options:
        assert option.about.endswith(".")
        assert option.type_text
        assert option.parse(option.default_text) == option.default
