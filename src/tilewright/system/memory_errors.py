"""Where memory ends: one typed error, whatever said so first.

Python, its imports, the dynamic linker and the libraries behind it each tell in another way that there is no
more; some libraries do not tell, but end the process or wait for ever.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.errors import OutOfMemory

_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "out of memory")
"""What the dynamic linker says of a library that it has no memory for, and libraries of their own data."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the cause of an error is that the system gives no more memory.

    >>> is_out_of_memory(ImportError("libx.so: failed to map segment from shared object"))
    True
    """
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(error, ImportError | OSError) and any(
            said in str(error).lower() for said in _NO_MEMORY
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def memory_errors_typed() -> Iterator[None]:
    """Make OutOfMemory of whatever is raised where memory ends.

    Raises:
        OutOfMemory: it ends.
    """
    try:
        yield
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory from error
        raise


def require_memory(size_bytes: int) -> None:
    """Check that the system would give so much: before a library is loaded that does not survive it.

    Raises:
        OutOfMemory: it would not.
    """
    try:
        mmap.mmap(-1, size_bytes).close()
    except OSError as error:
        raise OutOfMemory from error
