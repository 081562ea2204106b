"""A board with another processor, as tests have one: it computes with the reference, its times are made up.

`python -m tests.support.fake_board MODEL` is a worker. A kernel takes a time that its name decides, so that
some candidates win wherever they are measured.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from tilewright.targets.cpu.runtime.pool_ir import INTERFACE
from tilewright.tuning.measuring import RunTime, serve
from tilewright.tuning.runners import PROTOCOL, Greeting

MODULE = "tests.support.fake_board"
PROCESSOR = "Cortex of this test"

_RESULTS: dict[bytes, Any] = {}


@dataclass(frozen=True)
class _Fake:
    model: ReferenceEvaluator
    symbols: tuple[str, ...]
    has_stamps: bool

    def run(self, feed: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, np.ndarray[Any, Any]]:
        digest = hashlib.sha256(b"".join(array.tobytes() for array in feed.values())).digest()
        if digest not in _RESULTS:
            _RESULTS[digest] = self.model.run(None, dict(feed))
        return dict(zip(self.model.output_names, _RESULTS[digest], strict=True))

    def time(self, feed: Mapping[str, np.ndarray[Any, Any]]) -> RunTime:
        steps_ns = tuple(1000.0 + hashlib.sha256(s.encode()).digest()[0] * 4 for s in self.symbols)
        return RunTime(sum(steps_ns), steps_ns if self.has_stamps else ())

    def close(self) -> None:
        pass


def load(facts: Mapping[str, Any], parts: Mapping[str, bytes]) -> _Fake:
    """See `measuring.Load`: objects for AArch64, which are not run."""
    assert facts["made_for"]["isa"] == "neon"
    for name in facts["tables"]["objects"]:
        assert int.from_bytes(parts[name][18:20], "little") == 183, name
    main = facts["tables"]["main"]
    assert len(main["kernel_symbols"]) == main["num_steps"]
    return _Fake(ReferenceEvaluator(sys.argv[1]), tuple(main["kernel_symbols"]), main["profile"])


def greeting() -> list[bytes]:
    """Of that board."""
    return Greeting(PROTOCOL, "0", INTERFACE, PROCESSOR, "", ("neon",), ()).texts()


if __name__ == "__main__":
    serve(load, greeting)
