"""Where things are kept between runs, and what they are called there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CACHE_ENV = "TILEWRIGHT_CACHE"
OBJECTS, LOOPS, TRUSTED = "objects", "loops", "trusted"
"""Kinds of records: compiled kernels (in folders by their first digits), loops of the cost models, digests of
artifacts made here."""
KINDS = (OBJECTS, LOOPS, TRUSTED)
DATABASE = "tuning.db"
DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")
KEY_NAME = "cache.key"


def default_cache_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """`TILEWRIGHT_CACHE`, else `XDG_CACHE_HOME/tilewright`, else `~/.cache/tilewright`.

    Read when called, never at import. None when no home directory can be found. A relative XDG path is
    ignored, as its specification asks.

    >>> default_cache_directory({"TILEWRIGHT_CACHE": "/var/tmp/tw"}).as_posix()
    '/var/tmp/tw'
    """
    environment = os.environ if environment is None else environment
    if named := environment.get(CACHE_ENV):
        return Path(named)
    return _user_folder(environment, "XDG_CACHE_HOME", Path(".cache"))


def key_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the key of the digests lies: `XDG_STATE_HOME/tilewright`, else `~/.local/state/tilewright`.

    >>> key_directory({"HOME": "/home/me"}).as_posix()
    '/home/me/.local/state/tilewright'
    """
    return _user_folder(
        os.environ if environment is None else environment, "XDG_STATE_HOME", Path(".local", "state")
    )


def _user_folder(environment: Mapping[str, str], variable: str, below_home: Path) -> Path | None:
    xdg = environment.get(variable, "")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "tilewright"
    try:
        home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    except RuntimeError:
        return None
    return home / below_home / "tilewright" if home.is_absolute() else None
