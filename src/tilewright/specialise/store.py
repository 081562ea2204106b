"""What is made for each of many keys: lazily, one at a time, and kept within a limit."""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tilewright.errors import ModelClosed
from tilewright.records import dataclass
from tilewright.system.forks import ForkSafeLock

logger = logging.getLogger(__name__)

MAX_LIGHT = 4096
"""Values that hold little themselves: they are kept beside the others, and go by themselves."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class Entry(Generic[V]):
    """What was made for a key, how long that took, and how often it was asked for since."""

    value: V
    seconds: float
    is_ahead: bool
    num_uses: int = 0


class Store(Generic[K, V]):
    """Any number of threads may ask: what is there is given at once, also while something else is made.

    At most `limit` values are kept, and one beside those that were made ahead, which stay: what was asked for
    least recently goes first. It is not closed, for a run may still be using it, but goes with its last user.
    """

    def __init__(
        self, limit: int, *, warns: bool = True, is_light: Callable[[V], bool] = lambda _: False
    ) -> None:
        """`warns` once, when something is dropped that may have to be made again. What `is_light` does not
        count for the limit, but is limited to `MAX_LIGHT`."""
        self.limit = limit
        self._warns = warns
        self._is_light = is_light
        self.num_made = 0
        self.num_dropped = 0
        self.seconds = 0.0
        self._entries: OrderedDict[K, Entry[V]] = OrderedDict()
        self._lock = ForkSafeLock()
        self._making = ForkSafeLock()
        self._is_closed = False

    def get(self, key: K) -> V | None:
        """What there is for a key; it is now the one that was asked for last."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.num_uses += 1
            self._entries.move_to_end(key)
            return entry.value

    def entry(self, key: K) -> Entry[V] | None:
        """What is kept of a key, which counts as no use of it."""
        with self._lock:
            return self._entries.get(key)

    def obtain(self, key: K, make: Callable[[], V], *, is_ahead: bool = False) -> V:
        """What there is for a key, made now if there is nothing; `is_ahead` of any use. What `make` raises
        passes, and nothing is kept.

        Raises:
            ModelClosed: the store is closed, or was while this was made.
        """
        value = self.get(key)
        if value is not None:
            return value
        with self._making:
            value = self.get(key)  # another thread was faster
            if value is not None:
                return value
            if self._is_closed:
                raise ModelClosed
            started = time.perf_counter()
            value = make()
            entry = Entry(value, time.perf_counter() - started, is_ahead, 0 if is_ahead else 1)
            with self._lock:
                if self._is_closed:
                    raise ModelClosed
                self._keep(key, entry)
            return value

    def items(self) -> list[tuple[K, Entry[V]]]:
        """What is kept, least recently used first."""
        with self._lock:
            return list(self._entries.items())

    def values(self) -> list[V]:
        """What is kept."""
        return [entry.value for _, entry in self.items()]

    def close(self) -> list[V]:
        """Keep nothing, now and from now on; returns what was kept."""
        with self._lock:
            self._is_closed = True
            kept = [entry.value for entry in self._entries.values()]
            self._entries.clear()
            return kept

    def _keep(self, key: K, entry: Entry[V]) -> None:
        self.num_made += 1
        self.seconds += entry.seconds
        self._entries[key] = entry
        is_light = self._is_light(entry.value)
        if len(self._entries) <= (MAX_LIGHT if is_light else self.limit):
            return
        alike = [k for k, e in self._entries.items() if self._is_light(e.value) == is_light]
        excess = len(alike) - (MAX_LIGHT if is_light else self.limit)
        droppable = (k for k in alike if not self._entries[k].is_ahead and k != key)
        for oldest in list(itertools.islice(droppable, max(0, excess))):
            del self._entries[oldest]
            self.num_dropped += 1
            if self._warns and not is_light:
                self._warns = False
                logger.warning(
                    "more than %d sets of shapes are in use: the code of those used least recently is made "
                    "again when they come back; raise max-shapes, or use fewer",
                    self.limit,
                )
