"""Loads every file of a hostile corpus in this process and reports, as JSON, what happened.

Run as a process of its own: audit hooks cannot be removed, and peak memory is that of a process. What
Python opens is seen by an audit hook; reads of the forbidden folder by anyone, C++ included, by inotify.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from tilewright.benchmark.worker import peak_bytes
from tilewright.frontend.onnx import load_onnx

IN_ACCESS, IN_OPEN, IN_NONBLOCK = 0x1, 0x20, 0o4000


def watch(folder: Path) -> int:
    """An inotify descriptor that hears of every open in `folder` and every read of its files."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.inotify_init1(IN_NONBLOCK))
    for path, mask in ((folder, IN_OPEN), *((file, IN_ACCESS) for file in folder.iterdir())):
        if libc.inotify_add_watch(descriptor, os.fsencode(path), mask) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path}")
    return descriptor


def heard(descriptor: int) -> bool:
    """Whether anything happened since."""
    try:
        return bool(os.read(descriptor, 65536))
    except BlockingIOError:
        return False


def main() -> None:
    outside = Path(sys.argv[1])
    opened: list[str] = []
    recording = False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if recording and event == "open" and isinstance(arguments[0], str | bytes):
            opened.append(os.fsdecode(arguments[0]))

    sys.addaudithook(hook)
    results = []
    watcher = watch(outside)
    for name in sys.argv[2:]:
        opened.clear()
        recording = True
        start = time.perf_counter()
        try:
            load_onnx(name)
            error, message = "", ""
        except Exception as caught:  # An untyped one is a finding, to be told by its name.
            error, message = type(caught).__name__, str(caught)
        seconds = time.perf_counter() - start
        recording = False
        results.append(
            {
                "path": name,
                "error": error,
                "message": message,
                "seconds": seconds,
                "opened": list(opened),
                "outside_touched": heard(watcher),
            }
        )
    # The watcher must be able to hear, or its silence would prove nothing.
    (outside / "secret.bin").read_bytes()
    summary = {
        "results": results,
        "watcher_works": heard(watcher),
        "peak_bytes": peak_bytes(),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
