"""Names to members of a family: planners, passes, targets. Built-ins and plugins look the same.

Members load on first use, so that asking for a name costs no imports. A plugin is an entry point in the
family's group (`tilewright.partition`, ...) that resolves to a callable which makes the member.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any, Generic, TypeVar, cast

from tilewright.errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """The members of one family by name.

    >>> shapes: Registry[str] = Registry("shape")
    >>> shapes.add("square", lambda: "four sides")
    >>> shapes.get("square"), shapes.names()
    ('four sides', ('square',))
    """

    def __init__(self, kind: str, *, entry_point_group: str | None = None) -> None:
        self._kind = kind
        self._group = entry_point_group
        self._loaders: dict[str, Callable[[], T]] = {}
        self._members: dict[str, T] = {}
        self._has_plugins = entry_point_group is None

    def add(self, name: str, load: Callable[[], T]) -> None:
        """Register a member under a name that nobody has yet; `load` runs at its first use.

        Raises:
            UsageError: the name is taken.
        """
        if name in self._loaders:
            raise UsageError(f"{self._kind} {name!r} is registered twice; give one of them another name.")
        self._loaders[name] = load

    def add_class(self, name: str, path: str) -> None:
        """Register the class at `package.module:Class`, made without arguments."""
        module, _, attribute = path.partition(":")

        def load() -> T:
            return cast(T, getattr(importlib.import_module(module), attribute)())

        self.add(name, load)

    def get(self, name: str) -> T:
        """The member of that name, loaded if it is not yet.

        Raises:
            UsageError: no such member; the message lists close matches.
        """
        if name not in self._members:
            self._members[name] = self._loader(name)()
        return self._members[name]

    def names(self) -> tuple[str, ...]:
        """All names, plugins included, sorted."""
        self._find_plugins()
        return tuple(sorted(self._loaders))

    def _loader(self, name: str) -> Callable[[], T]:
        if name not in self._loaders:
            self._find_plugins()
        if name not in self._loaders:
            close = difflib.get_close_matches(name, self._loaders, n=3, cutoff=0.5)
            hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(self.names())}."
            raise UsageError(f"Unknown {self._kind} {name!r}. {hint}")
        return self._loaders[name]

    def _find_plugins(self) -> None:
        if self._has_plugins:
            return
        self._has_plugins = True
        assert self._group is not None
        for entry in sorted(metadata.entry_points(group=self._group), key=lambda e: (e.name, e.value)):
            self.add(entry.name, _plugin_loader(self._kind, entry))


def _plugin_loader(kind: str, entry: metadata.EntryPoint) -> Callable[[], Any]:
    def load() -> Any:
        try:
            return entry.load()()
        except ImportError as error:
            raise UsageError(
                f"{kind} {entry.name!r} is a plugin ({entry.value}) that cannot be imported: {error}. "
                "Reinstall or remove the package that provides it."
            ) from error

    return load
