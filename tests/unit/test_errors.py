"""Errors are what they were when another process raised them."""

from __future__ import annotations

import pickle

import pytest

from tilewright.errors import MachineError, NoGeneratedCode, TilewrightError, UsageError
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
