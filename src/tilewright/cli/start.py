"""The first instructions of the `tilewright` command, before anything is loaded that takes time."""

from __future__ import annotations

from typing import NoReturn

from tilewright.cli import interrupts


def main() -> NoReturn:
    """Entry point of the `tilewright` command; never returns."""
    interrupts.end_at_once()
    from tilewright.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
