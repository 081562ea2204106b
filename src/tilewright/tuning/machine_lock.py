"""One measurement at a time on a machine, whatever the number of processes that measure."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tilewright.private_files import NotPrivate, PrivateFolder, keeps_nothing, key_directory, warn_once

logger = logging.getLogger(__name__)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NAME = "measuring.lock"
# A process that waits for the lock holds this one, so that one that measures without a pause lets others in.
_TURN_NAME = "measuring.turn"
_POLL_S = 0.01
_MAX_WAIT_S = 120.0
"""A measurement takes a few seconds: a process that holds the lock for longer was stopped."""


class MachineLock:
    """A lock on a file: the system lets go of it when the process that holds it ends, however it ends.

    A lock without a folder, or in one that others may write, locks nothing.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        max_wait_s: float = _MAX_WAIT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = None if folder is None or fcntl is None else PrivateFolder(folder)
        self._max_wait_s = max_wait_s
        self._sleep = sleep
        self._descriptor: int | None = None

    @classmethod
    def of_user(cls) -> MachineLock:
        """That of all processes of this user, whatever their caches."""
        return cls(None if keeps_nothing() else key_directory())

    def __enter__(self) -> None:
        if self._folder is None:
            return
        try:
            with self._folder.opened(create=True) as folder:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                turn = os.open(_TURN_NAME, flags, 0o600, dir_fd=folder)
                try:
                    self._descriptor = os.open(_NAME, flags, 0o600, dir_fd=folder)
                except BaseException:
                    os.close(turn)
                    raise
        except NotPrivate as problem:
            warn_once(problem)
            return
        except OSError as error:
            logger.info("measuring without a lock: %s", error)
            return
        try:
            self._wait(turn)
            self._wait(self._descriptor)
        except BaseException:
            self._release()
            raise
        finally:
            os.close(turn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _wait(self, descriptor: int) -> None:
        waited_s = 0.0
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if waited_s >= self._max_wait_s:
                logger.warning("another process has measured for %.0f s: measuring beside it", waited_s)
                return
            self._sleep(_POLL_S)
            waited_s += _POLL_S

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
