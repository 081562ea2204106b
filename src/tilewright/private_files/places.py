"""Where things are kept between runs, and what they are called there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CACHE_ENV = "TILEWRIGHT_CACHE"
NO_CACHE_ENV = "TILEWRIGHT_NO_CACHE"
"""Set to anything, nothing is kept between runs. Processes that are started for a run inherit it."""
OBJECTS, LOOPS, CALIBRATIONS, MAPPINGS = "objects", "loops", "calibrations", "mappings"
"""Kinds of records: compiled kernels (in folders by their first digits), loops of the cost models, rates of
machines that were measured, mappings onto described machines."""
KINDS = (OBJECTS, LOOPS, CALIBRATIONS, MAPPINGS)
MODELS = "models"
"""Folder of compilations that are kept: artifacts, which are signed."""
DATABASE = "tuning.db"
DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")
KEY_NAME = "cache.key"
SIGNING_KEY_NAME = "signing.key"
TRUSTED_KEYS = "trusted-keys"
"""A folder of the user's state: a file for each public key that is trusted, which holds what it is called."""


def keeps_nothing(environment: Mapping[str, str] | None = None) -> bool:
    """Whether nothing may be written that outlives this run, as `TILEWRIGHT_NO_CACHE` and --no-cache ask."""
    return bool((os.environ if environment is None else environment).get(NO_CACHE_ENV))


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Write nothing that outlives this run, here and in processes that are started meanwhile."""
    before = os.environ.get(NO_CACHE_ENV)
    os.environ[NO_CACHE_ENV] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_CACHE_ENV]
        else:
            os.environ[NO_CACHE_ENV] = before


def default_cache_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """The user's cache, `cache_place`; none where nothing is to be kept."""
    return None if keeps_nothing(environment) else cache_place(environment)


def cache_place(environment: Mapping[str, str] | None = None) -> Path | None:
    """`TILEWRIGHT_CACHE`, else `XDG_CACHE_HOME/tilewright`, else `~/.cache/tilewright`.

    Read when called, never at import. None when no home directory can be found. A relative XDG path is
    ignored, as its specification asks.

    >>> cache_place({"TILEWRIGHT_CACHE": "/var/tmp/tw"}).as_posix()
    '/var/tmp/tw'
    """
    environment = os.environ if environment is None else environment
    if named := environment.get(CACHE_ENV):
        return Path(named)
    return _user_folder(environment, "XDG_CACHE_HOME", Path(".cache"))


def key_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the user's keys lie: `XDG_STATE_HOME/tilewright`, else `~/.local/state/tilewright`.

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
