"""What is locked is what pyproject.toml asks for, with hashes, and the bill of materials says the same."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: ROOT / "requirements" / f"{name}.lock" for name in ("ci", "runtime")}
HERE = {"python_version": "3.11", "python_full_version": "3.11.7", "sys_platform": "linux", "extra": ""}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "requirements" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


SBOM, PAGES = loaded("sbom"), loaded("page_libraries")


def pins(lock: str) -> dict[str, str]:
    """Versions by name, of what this system needs."""
    entries = SBOM.locked(LOCKS[lock])
    return {
        canonicalize_name(n): v for n, v, marker, _ in entries if not marker or Marker(marker).evaluate(HERE)
    }


def asked(lock: str) -> list[Requirement]:
    project = PROJECT["project"]
    texts = list(project["dependencies"])
    if lock == "ci":
        extras = project["optional-dependencies"]
        texts += extras["dev"] + extras["docs"] + PROJECT["build-system"]["requires"]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("lock", LOCKS)
def test_what_the_project_asks_for_is_locked_within_its_bounds(lock: str) -> None:
    found = pins(lock)
    for requirement in asked(lock):
        version = found.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement}: run requirements/lock.sh"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}"


@pytest.mark.parametrize("lock", LOCKS)
def test_what_that_needs_is_locked_too(lock: str) -> None:
    found = pins(lock)
    for name, version in found.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if installed.version != version:
            continue  # another environment than CI's
        for text in installed.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate(HERE):
                got = found.get(canonicalize_name(needed.name))
                assert got is not None, f"{name} needs {needed}"
                assert needed.specifier.contains(got), f"{name} needs {needed}, locked is {got}"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_file_has_a_hash_and_none_a_place(lock: str) -> None:
    text = LOCKS[lock].read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash)", text, re.MULTILINE), "an option, such as an index"
    entries = SBOM.locked(LOCKS[lock])
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE))
    assert [name for name, _, _, hashes in entries if not hashes] == []
    assert len([h for entry in entries for h in entry[3]]) == text.count("sha256:")


def test_users_get_what_ci_tests() -> None:
    ci = {(name, version) for name, version, _, _ in SBOM.locked(LOCKS["ci"])}
    assert {(name, version) for name, version, _, _ in SBOM.locked(LOCKS["runtime"])} <= ci


def test_every_dependency_has_both_bounds() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    texts = [*PROJECT["project"]["dependencies"], *(t for extra in extras for t in extra)]
    texts += PROJECT["build-system"]["requires"]
    for text in texts:
        operators = {s.operator for s in Requirement(text).specifier}
        assert {">=", "<"} <= operators, text


def test_ci_installs_nothing_without_a_hash() -> None:
    lines = [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("pip install")
    ]
    assert lines
    for line in lines:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation ." in line, line


def test_the_bill_of_materials_lists_what_runs() -> None:
    bill = SBOM.bill_of_materials()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    libraries = {(package["name"], package["version"]) for package in PAGES.locked()}
    assert {(c["name"], c["version"]) for c in bill["components"]} == libraries | {
        (name, version) for name, version, _, _ in SBOM.locked(LOCKS["runtime"])
    }
    assert bill["metadata"]["component"]["version"] == PROJECT["project"]["version"]
    references = {c["bom-ref"] for c in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) == references
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert SBOM.bill_of_materials() == bill


def test_javascript_of_pages_is_what_is_locked_and_its_licences_are_beside_it() -> None:
    project = PROJECT["project"]
    told = PAGES.LICENCES.read_text()
    for package in PAGES.locked():
        assert PAGES.sha256(PAGES.FOLDER / package["file"]) == package["sha256"]
        assert package["integrity"].startswith("sha512-")
        assert package["version"] in (PAGES.FOLDER / package["file"]).read_text()
        for held in (package, *package["holds"]):
            assert f"{held['name']} {held['version']} ({held['license']})" in told
            assert held["license"] in project["license"].split(" AND ")
    assert {p.name for p in PAGES.FOLDER.glob("*.js")} == {p["file"] for p in PAGES.locked()}
    assert PAGES.LICENCES.relative_to(ROOT).as_posix() in project["license-files"]
