"""Forms as JSON: what was written comes back, and what a file of somebody else says is taken or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.partition.form import Blocking, Form, KernelForm
from tilewright.planning.choice import Choice

FORM = Form(
    (
        KernelForm((0, 2), Blocking((1, 8, 4, 4), 2), 0.25),
        KernelForm((1,), choices=(("8f00", Choice.of("winograd", tile=2)),)),
    )
)


def test_a_form_comes_back_as_it_was_written() -> None:
    assert Form.from_json(FORM.to_json()) == FORM


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": "all"},
        {"nodes": [-1]},
        {"nodes": [True]},
        {"block": [1.0]},
        {"strip": "1"},
        {"saved_share": 10**400},
        {"saved_share": float("inf")},
        {"saved_share": -1},
        {"saved_share": None},
        {"choices": []},
        {"choices": {"8f00": {"template": 1}}},
    ],
    ids=str,
)
def test_what_is_no_form_is_none(fields: dict[str, Any]) -> None:
    kernel = FORM.kernels[0].to_json() | fields
    assert Form.from_json({"kernels": [kernel]}) is None
