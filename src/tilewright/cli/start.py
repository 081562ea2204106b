"""The first instructions of the `tilewright` command, before anything is loaded that takes time."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tilewright.cli import interrupts


def main() -> NoReturn:
    """Entry point of the `tilewright` command; never returns."""
    interrupts.end_at_once()
    _open_closed_streams()
    from tilewright.cli.main import main as run

    run()


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
