"""Regular expressions of a model, which may take exponentially long to match: in a process that can be ended.

ONNX asks for RE2's syntax; onnx.reference matches with `re`, which goes back and tries again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.work import MAX_REGEX_S

_PROGRAM = """
import json, re, sys
pattern, texts = json.load(sys.stdin)
try:
    found = re.compile(pattern)
except (re.error, OverflowError, RecursionError) as error:
    print(json.dumps(str(error)))
else:
    print(json.dumps([found.fullmatch(text) is not None for text in texts]))
"""


def full_matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Whether each text as a whole matches.

    Raises:
        ValueError: the pattern is none, or matching takes longer than `MAX_REGEX_S`.
        OSError: no process can be started.

    >>> full_matches("a+b", ["aab", "aabc"])
    [True, False]
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=json.dumps([pattern, list(texts)]),
            capture_output=True,
            text=True,
            timeout=MAX_REGEX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"matching the pattern {pattern!r} takes longer than MAX_REGEX_S = {MAX_REGEX_S:g} s; "
            "simplify the pattern"
        ) from None
    if done.returncode:
        raise ValueError(f"matching the pattern {pattern!r} ended with status {done.returncode}")
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise ValueError(f"the pattern {pattern!r} is not valid: {answer}")
    return [bool(matched) for matched in answer]


def bounded_operators() -> list[Any]:
    """Operators to give onnx.reference in place of its own."""
    from onnx.reference.op_run import OpRun

    class RegexFullMatch(OpRun):  # type: ignore[misc]  # a class of a package without types
        op_domain = ""

        def _run(self, x: Any, pattern: str | None = None) -> tuple[Any]:
            if x.dtype.kind not in "OU":
                raise TypeError(f"it takes text, not {x.dtype}")
            texts = [str(text) for text in x.reshape(-1)]
            matched = full_matches(pattern or "", texts) if texts else []
            return (np.array(matched, dtype=np.bool_).reshape(x.shape),)

    return [RegexFullMatch]
