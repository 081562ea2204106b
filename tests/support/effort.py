"""How much a function computes: a count that neither the load of the machine nor its speed changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def num_instructions(call: Callable[[], object]) -> int:
    """Instructions of Python's machine that functions of this package run: loops count each time, copies of
    whole sets and lists as one."""
    count = 0

    def follow(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "call":
            if not frame.f_globals.get("__name__", "").startswith("tilewright"):
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return follow

    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(None)
    return count
