"""Plain values from files to typed ones: what is refused, and at what cost."""

from __future__ import annotations

import json
import time

import pytest

from tilewright.fields import parsed_json


def test_a_key_that_is_there_twice_is_named_however_many_there_are() -> None:
    keys = [f"k{i}" for i in range(200_000)]
    text = ",".join(f"{json.dumps(key)}:0" for key in (*keys, keys[-1]))
    start_s = time.process_time()
    with pytest.raises(ValueError, match="'k199999' is there twice"):
        parsed_json(f"{{{text}}}".encode())
    assert time.process_time() - start_s < 5  # to count each of them takes minutes


def test_documents_are_json_as_the_standard_has_it() -> None:
    assert parsed_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    for text in (b"[NaN]", b"[Infinity]", b'{"a": 1, "a": 2}', b"[1"):
        with pytest.raises(ValueError, match=r"\w"):
            parsed_json(text)
