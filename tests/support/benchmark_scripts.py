"""Scripts of `benchmarks/` as modules: what they do with results is tested, what they measure is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


@contextmanager
def benchmark_script(name: str) -> Iterator[ModuleType]:
    """The script of a name, which finds its neighbours as where it is run."""
    before = list(sys.path)
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
