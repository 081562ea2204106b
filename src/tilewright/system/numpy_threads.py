"""Products of numpy on one thread.

OpenBLAS's threads wait for each other by spinning: on a machine that does other work, products of the sizes
that networks have take 5 to 15 times the processor time on two threads that they take on one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

from tilewright.system.forks import ForkSafeLock

_SPELLINGS = ("scipy_openblas_{}64_", "openblas_{}64_", "openblas_{}")
"""Names of OpenBLAS's functions in numpy's wheels and in distributions."""


class _State:
    """Of this process: how many ask for one thread, and how many threads there were before."""

    def __init__(self) -> None:
        self.num_asking = 0
        self.num_threads = 0
        self.lock = ForkSafeLock()


_state = _State()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for each product of this process, where numpy's library can be told; nested as often as
    one likes, from any thread."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    with _state.lock:
        _state.num_asking += 1
        if _state.num_asking == 1:
            _state.num_threads = get()
            put(1)
    try:
        yield
    finally:
        with _state.lock:
            _state.num_asking -= 1
            if _state.num_asking == 0:
                put(_state.num_threads)


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What gets and sets the number of threads, if numpy uses OpenBLAS."""
    from numpy.linalg import _umath_linalg  # which is linked with the library

    try:
        library = ctypes.CDLL(_umath_linalg.__file__)
    except OSError:
        return None
    for spelling in _SPELLINGS:
        get = getattr(library, spelling.format("get_num_threads"), None)
        put = getattr(library, spelling.format("set_num_threads"), None)
        if get is not None and put is not None:
            get.restype, put.argtypes, put.restype = ctypes.c_int, [ctypes.c_int], None
            return get, put
    return None
