"""Python processes that tests start run as on the processor of the tests: see `other_processor.run_as`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_CHANGES = {"tilewright.hardware.probe": "change_probe", "tilewright.targets.cpu.codegen": "change_code"}
"""By module, what is called once it is imported."""


class _Loader(importlib.abc.Loader):
    """The usual one, and the change behind it."""

    def __init__(self, usual: importlib.abc.Loader) -> None:
        self._usual = usual

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        from harness import other_processor

        getattr(other_processor, _CHANGES[module.__name__])()


class _Finder(importlib.abc.MetaPathFinder):
    """Imports nothing before the process does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if "TILEWRIGHT_TESTS_PROCESSOR" in os.environ:
    sys.meta_path.insert(0, _Finder())
