"""The first instructions of the `tilewright` command, before anything is loaded that takes time."""

from __future__ import annotations

import _thread
import os
import sys
from typing import NoReturn

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from tilewright.cli import interrupts
from tilewright.errors import OutOfMemory
from tilewright.system.memory_errors import memory_errors_typed, require_memory

_MANY_THREADS = 4096
"""A limit on processes and threads that no machine's cores come near."""
_OWN_THREADS = 3
_LEAST_BYTES = 220 << 20
"""Addresses that the least of verbs takes. With less numpy's OpenBLAS ends the process by itself."""


def main() -> NoReturn:
    """Entry point of the `tilewright` command; never returns."""
    interrupts.end_at_once()
    _open_closed_streams()
    if not _can_start_threads():
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        require_memory(_LEAST_BYTES)
        with memory_errors_typed():
            from tilewright.cli.main import main as run
    except OutOfMemory as error:
        print(f"tilewright: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    run()


def _can_start_threads() -> bool:
    """Whether the system starts a thread for each core: else numpy's OpenBLAS, which expects that, sends this
    process a SIGINT while it is loaded."""
    may_end, num_cores = _thread.allocate_lock(), os.cpu_count() or 1
    is_limited = resource is not None and 0 <= resource.getrlimit(resource.RLIMIT_NPROC)[0] < _MANY_THREADS
    with may_end:
        try:
            for _ in range(num_cores + _OWN_THREADS if is_limited else 1):
                _thread.start_new_thread(_pass, (may_end,))
        except RuntimeError:
            return False
    return True


def _pass(lock: _thread.LockType) -> None:
    with lock:
        pass


def _open_closed_streams() -> None:
    """Standard streams that the caller closed lead nowhere: else the next file that is opened would take the
    place of one, and be written over by what is said."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


if __name__ == "__main__":
    main()
