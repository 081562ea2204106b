"""Regular expressions of a model, which may take exponentially long to match: in a process that can be ended.

ONNX asks for RE2's syntax; onnx.reference matches with `re`, which goes back and tries again.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arguments import shown
from tilewright.ir.work import MAX_REGEX_S
from tilewright.progress import checkpoint
from tilewright.system.worker_process import start_process

# How long a compilation whose time is over waits for a pattern.
_POLL_S = 0.25

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
        NoWorker: no process can be started.

    >>> full_matches("a+b", ["aab", "aabc"])
    [True, False]
    """
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    question: str | None = json.dumps([pattern, list(texts)])
    pipe = subprocess.PIPE
    end_s = time.monotonic() + MAX_REGEX_S
    with start_process(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            while True:
                checkpoint()
                if time.monotonic() > end_s:
                    raise ValueError(
                        f"matching the pattern {shown(pattern)} takes longer than "
                        f"MAX_REGEX_S = {MAX_REGEX_S:g} s; simplify the pattern"
                    )
                with contextlib.suppress(subprocess.TimeoutExpired):
                    given, question = question, None
                    printed, _ = child.communicate(given, timeout=_POLL_S)
                    break
        finally:
            child.kill()
    if child.returncode:
        raise ValueError(f"matching the pattern {shown(pattern)} ended with status {child.returncode}")
    answer = json.loads(printed)
    if isinstance(answer, str):
        raise ValueError(f"the pattern {shown(pattern)} is not valid: {answer}")
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
