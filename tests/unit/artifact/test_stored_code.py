"""What a target gives of its code is kept under the names that it gives: none of an artifact's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body
from tilewright.errors import InternalError
from tilewright.targets.stored import StoredCode


@pytest.mark.parametrize("name", ["facts.json", "../evil.o", "a b"])
def test_a_part_has_no_name_that_an_artifact_cannot_have(name: str, tmp_path: Path) -> None:
    compiled = tw.compile(small_net(), threads=1)
    code = StoredCode({"made": "here"}, {}, {name: (b"",)})
    body = Body(lambda: compiled.program, lambda: (code,), lambda num_threads: compiled.load())
    with pytest.raises(InternalError, match="which no artifact can have"):
        CompiledModel(compiled.facts, body).save(tmp_path / "m.tw")
    assert list(tmp_path.iterdir()) == []


def test_an_opened_artifact_is_saved_with_the_code_that_it_has(tmp_path: Path) -> None:
    compiled = tw.compile(small_net(), threads=1)
    first = compiled.save(tmp_path / "first.tw")
    opened = tw.open(first)
    second = opened.save(tmp_path / "second.tw")
    assert second.read_bytes() == first.read_bytes()
    again = tw.open(second)
    feed = feed_for(small_net())
    for a, b in zip(compiled.run(None, feed), again.run(None, feed), strict=True):
        assert a.tobytes() == b.tobytes()
