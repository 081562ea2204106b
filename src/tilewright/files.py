"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path | str, data: bytes) -> None:
    """Write `data` to `path` through a temporary file beside it, so that no reader ever sees a part.

    An interruption at any moment leaves the old file, or none.

    Raises:
        OSError: it cannot be written; names `path`.
    """
    path = Path(path)
    temporary = None
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        handle, temporary = tempfile.mkstemp(prefix=".tilewright-", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; the result gets what the user's umask allows.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
