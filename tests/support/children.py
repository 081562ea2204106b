"""Child processes that try what may crash or hang, and tell what they do line by line."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator


class Silent(Exception):
    """A child said nothing for too long, and was ended."""


def lines_of(child: subprocess.Popen[bytes], timeout_s: float) -> Iterator[str]:
    """Each whole line that a child prints, as it comes, until it ends.

    Raises:
        Silent: no line came for `timeout_s`; the child was killed.
    """
    assert child.stdout is not None
    left = b""
    while select.select([child.stdout], [], [], timeout_s)[0]:
        more = os.read(child.stdout.fileno(), 1 << 16)
        if not more:
            return
        *whole, left = (left + more).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    child.kill()
    raise Silent
