"""What every test can rely on: signals do what they do in a terminal, tables are as they are in a pipe."""

from __future__ import annotations

import os
import signal


def pytest_configure() -> None:
    """A shell without job control starts what runs in the background with signals ignored, and `nohup` too.

    Commands that tests start inherit that, and rightly ignore them then. Some shells export their width.
    """
    os.environ.pop("COLUMNS", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
