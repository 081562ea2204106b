"""Shapes from feeds, against declarations and what the user asked; sets of shapes to prepare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.extents import Axis
from tilewright.frontend.onnx.inputs import Declaration, Dimension
from tilewright.ir.dtype import DType
from tilewright.specialise.binding import Binding


def binding(
    asked: dict[str, tuple[Axis, ...]] | None = None, **dims: tuple[Dimension, ...] | None
) -> Binding:
    declared = {name: Declaration(DType.FLOAT32, d) for name, d in dims.items()}
    return Binding(declared, {}, asked or {})


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def test_a_key_holds_the_shapes_in_the_models_order() -> None:
    found = binding(a=("N", 2), b=("N",)).key({"b": zeros(3), "a": zeros(3, 2)})
    assert found == (("a", (3, 2)), ("b", (3,)))


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "input 'a' is missing: this model needs a, b."),
        ({"a": zeros(3, 2), "b": zeros(3), "c": zeros(1)}, "unknown input 'c': this model takes a, b."),
        ({"a": zeros(3, 3), "b": zeros(3)}, r"input 'a' is float32\[3, 3\], the model takes float32\[N, 2\]"),
        ({"a": zeros(3), "b": zeros(3)}, r"input 'a' is float32\[3\], the model takes float32\[N, 2\]"),
        ({"a": zeros(3, 2), "b": zeros(4)}, "dimension 'N' is 4 there and 3 at 'a'; it must be the same"),
        ({"a": np.zeros((3, 2)), "b": zeros(3)}, r"input 'a' is float64\[3, 2\], the model takes float32"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(feed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        binding(a=("N", 2), b=("N",)).key(feed)


def test_one_extent_fixes_an_axis_and_several_do_not() -> None:
    asked: dict[str, tuple[Axis, ...]] = {"a": ("1..4|8", 6)}
    assert binding(asked, a=("N", "M")).key({"a": zeros(5, 6)}) == (("a", (5, 6)),)
    with pytest.raises(UsageError, match=r"is float32\[5, 7\], the model takes float32\[N, 6\]"):
        binding(asked, a=("N", "M")).key({"a": zeros(5, 7)})


def test_axes_of_which_several_extents_were_asked_are_listed_by_dimension() -> None:
    asked: dict[str, tuple[Axis, ...]] = {"a": ("1..4", "8|16"), "c": (2, "3|4")}
    found = binding(asked, a=("N", "S"), b=("S", "N"), c=("K", None))
    assert found.listed_axes() == {"N": {"a": 0, "b": 1}, "S": {"a": 1, "b": 0}, ("c", 1): {"c": 1}}
    assert binding({"a": ("1..4", "?")}, a=("N", "N")).listed_axes() == {}


def test_all_sets_of_shapes_are_prepared_and_symbols_are_the_same_everywhere() -> None:
    asked: dict[str, tuple[Axis, ...]] = {"a": ("1..2", "8|16"), "b": ("2..3", 8)}
    found = binding(asked, a=("N", "S"), b=("N", "T")).prepared(10)
    assert found == [(("a", (2, 8)), ("b", (2, 8))), (("a", (2, 16)), ("b", (2, 8)))]


def test_nothing_is_prepared_where_an_axis_may_be_anything() -> None:
    assert binding({"a": (2, "?")}, a=("N", "S")).prepared(10) == []


def test_extents_that_are_named_for_several_inputs_are_not_within_a_range() -> None:
    asked: dict[str, tuple[Axis, ...]] = {"a": ("6|7|8",), "b": ("6|7|8",), "c": ("6..8",)}
    named = binding({n: asked[n] for n in "ab"}, a=("N",), b=("N",))
    assert not any(map(named.is_inside, named.prepared(10)))
    ranged = binding({"a": asked["c"]}, a=("N",))
    assert list(map(ranged.is_inside, ranged.prepared(10))) == [False, True, False]


def test_inputs_of_unknown_rank_get_it_from_what_is_asked() -> None:
    assert binding({"a": (2, "3|4")}, a=None).prepared(10) == [(("a", (2, 3)),), (("a", (2, 4)),)]
    assert binding(a=None).key({"a": zeros(2, 3)}) == (("a", (2, 3)),)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"c": (1,)}, "names no input of the model; inputs: a, b"),
        ({"a": (1,)}, "has 1 dimensions, but input 'a' has 2"),
        ({"a": (1, "3..4")}, "sets dimension 1 to 3..4, but the model fixes it to 2"),
        ({"a": ("1..2", 2), "b": ("4..5",)}, "another input sets it to 1..2; it must be the same"),
    ],
)
def test_what_is_asked_must_fit_the_model(asked: dict[str, tuple[Axis, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        binding(asked, a=("N", 2), b=("N",))


def test_more_sets_than_are_kept_are_refused() -> None:
    with pytest.raises(UsageError, match=r"ask for 512 sets of shapes, more than the 64"):
        binding({"a": ("1..512",)}, a=("N",)).prepared(64)
