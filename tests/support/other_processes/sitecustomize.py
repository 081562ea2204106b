"""Python processes that tests start run as on the processor of the tests: see `other_processor.run_as`."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_CHANGES = {
    "llvmlite.binding": "change_features",
    "tilewright.hardware.probe": "change_registers",
    "tilewright.targets.llvm.codegen": "change_code",
}
"""By module, what is called once it is imported."""


class _Finder(importlib.abc.MetaPathFinder):
    """Imports nothing before the process does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            usual = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(_changed, usual)  # type: ignore[method-assign]
        return spec


def _changed(usual: Callable[[ModuleType], None], module: ModuleType) -> None:
    usual(module)
    from tests.support import other_processor

    getattr(other_processor, _CHANGES[module.__name__])()


if "TILEWRIGHT_TESTS_PROCESSOR" in os.environ:
    sys.meta_path.insert(0, _Finder())
