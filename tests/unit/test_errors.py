"""Errors are what they were when another process raised them, and one line that can be read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from tilewright.errors import MachineError, NoGeneratedCode, TilewrightError, UsageError, error_context
from tilewright.extras import MissingPackage


@pytest.mark.parametrize(
    "error",
    [UsageError("no"), NoGeneratedCode(), MachineError("chip.yaml: no."), MissingPackage("numba", "loops")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_from_a_worker_process(error: TilewrightError) -> None:
    error.add_note("while mapping")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__notes__ == ["while mapping"]


HOSTILE = ("x" * 10**6, "x " * 10**6, "\x1b[2J" * 10**5, "\n" * 10**5, "\U000e0001" * 10**5, "a.b" * 10**5)


def _kinds(of: type[TilewrightError] = TilewrightError) -> Iterator[type[TilewrightError]]:
    yield of
    for kind in of.__subclasses__():
        yield from _kinds(kind)


@pytest.mark.parametrize("kind", [*_kinds()], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_makes_an_error_longer_than_one_can_read(kind: type[TilewrightError], text: str) -> None:
    error = kind.__new__(kind)
    error.args = (f"model.onnx: node {text!r}: {text}; rename it.",)
    with pytest.raises(kind) as caught, error_context("while importing"), error_context(f"in {text}"):
        raise error
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 2000
    assert said.startswith("model.onnx: node ")
    assert said.endswith("(while importing)")
