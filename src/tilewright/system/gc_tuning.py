"""Python's garbage collector while plans are made: many objects live for long and hardly any are circular."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 200_000
"""Objects between two collections of the youngest; Python's 700 makes it walk through all plans again and
again, for half of the time of planning for an accelerator."""

_lock = threading.Lock()
_running: list[tuple[int, int, int]] = []  # of each that runs: the thresholds that it met


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Lets the garbage collector run less often, in all threads; as before once the last such block is left.

    One that was switched off, or made to run less often still, is left as it is.
    """
    with _lock:
        met = gc.get_threshold()
        _running.append(met)
        if 0 < met[0] < _RARELY:
            gc.set_threshold(_RARELY, *met[1:])
    try:
        yield
    finally:
        with _lock:
            first = _running[0]
            _running.pop()
            if not _running:
                gc.set_threshold(*first)
