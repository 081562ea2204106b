"""What is not needed by everybody is an extra, and its absence is told in one line."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.models import small_net

from tilewright.api.doctor import NEEDED
from tilewright.extras import EXTRAS, MissingPackage, imported

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules whose packages are called otherwise, and who brings along what is not named for itself.
PACKAGES = {
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "google": "onnx",
    "click": "typer",
    "cuda": "cuda-bindings",
}
OF_DEVELOPERS = ("dev", "docs", "mutation", "cuda-check")
IMPORT = re.compile(r"^ *(?:from (\w+)[\w.]* import |import (\w+)[\w.]*(?: as \w+)?$)", re.MULTILINE)
WITHOUT = """
import importlib.machinery, sys

sys.argv[0] = "tilewright"
real = importlib.machinery.PathFinder.find_spec


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else real(name, path, target)


sys.meta_path[:] = [Finder if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
from tilewright.cli.start import main

main()
"""


def names(texts: Sequence[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in texts}


def test_extras_are_those_of_the_package() -> None:
    stated = {name: names(texts) for name, texts in PROJECT["optional-dependencies"].items()}
    assert {extra.name: set(extra.packages) for extra in EXTRAS} == {
        name: packages for name, packages in stated.items() if name not in OF_DEVELOPERS
    }
    assert stated["simulate"] | stated["learn"] < stated["dev"]


def test_the_doctor_looks_for_every_dependency() -> None:
    assert {canonicalize_name(name) for name in NEEDED} == names(PROJECT["dependencies"])


def test_what_is_imported_is_a_dependency_or_in_an_extra() -> None:
    stated = names(PROJECT["dependencies"]) | {package for extra in EXTRAS for package in extra.packages}
    texts = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
    modules = {first or second for text in texts for first, second in IMPORT.findall(text)}
    assert {"numpy", "numba", "yaml"} <= modules
    others = modules - set(sys.stdlib_module_names) - {"tilewright"}
    assert {canonicalize_name(PACKAGES.get(name, name)) for name in others} <= stated


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    with pytest.raises(
        MissingPackage, match=r"^sums need numba, .*: pip install 'tilewright\[simulate\]'\.$"
    ):
        raise MissingPackage("numba", "sums")
    assert imported("numba", "sums").__name__ == "numba"


def without(absent: set[str], *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT.format(absent=absent), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_models_compile_and_run_without_any_extra(tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "m.onnx")
    absent = {"numba", "highspy", "sklearn", "onnxruntime", "openvino", "torch", "ray"}
    assert without(absent, "run", "m.onnx", "--random", folder=tmp_path).returncode == 0
    mapping = without(absent, "map", "3_14_256_256_1", "--target", "eyeriss", folder=tmp_path)
    assert mapping.returncode == 2
    assert mapping.stderr == (
        "tilewright: loops that count and simulate need numba, which is not installed: "
        "pip install 'tilewright[simulate]'.\n"
    )
