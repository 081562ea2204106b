"""Work on several threads; on the calling one where the system, or an interpreter that ends, starts none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tilewright.hardware.probe import num_threads_default

A = TypeVar("A")
B = TypeVar("B")


def map_on_cores(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """`function` of each item, in order. It may be called twice for an item, so it must not matter how often.

    >>> map_on_cores(abs, [-1, 2])
    [1, 2]
    """
    todo = list(items)
    num_threads = min(num_threads_default(), len(todo))
    if num_threads > 1:
        try:
            with ThreadPoolExecutor(num_threads) as threads:
                futures = [threads.submit(function, item) for item in todo]
        except RuntimeError:  # no thread could be started; what `function` raises stays in its future
            pass
        else:
            return [future.result() for future in futures]
    return [function(item) for item in todo]


def beside(helper: Callable[[], A], own: Callable[[], B]) -> tuple[A, B]:
    """Both results: `helper` on another thread while `own` runs on this one, and no longer than both need.

    >>> beside(lambda: 1, lambda: 2)
    (1, 2)
    """
    with ThreadPoolExecutor(1) as thread:
        try:
            future = thread.submit(helper)
        except RuntimeError:
            future = None
        mine = own()
    return (helper() if future is None else future.result()), mine
