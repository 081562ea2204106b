"""Processes that share the work of a reproduction, and end when it does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tilewright.system.worker_process import end_with_parent


@contextlib.contextmanager
def process_pool(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes, fresh ones: threads of this one must not be copied in the middle of what they do.

    Where an exception leaves the block, Ctrl-C as well, they end at once, whatever they were at.
    """
    pool = ProcessPoolExecutor(max(1, num_processes), get_context("spawn"), _begin_and_end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_and_end_with_parent() -> None:
    """Ctrl-C goes to the whole group of processes: the one that asks decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
