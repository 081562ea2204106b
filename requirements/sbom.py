"""The software bill of materials of a release: CycloneDX 1.6 as JSON, from the lock files of what runs.

`python requirements/sbom.py > tilewright-VERSION.cdx.json`. Equal lock files give equal documents: there is
no time in them, and the serial number is made of the content.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "runtime.lock"
LIBRARIES = ROOT / "src" / "tilewright" / "report" / "libraries" / "libraries.json"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def locked(path: Path = LOCK) -> list[tuple[str, str, str, list[str]]]:
    """Name, version, marker (where it is needed; empty for everywhere) and hashes of each package locked."""
    found: list[tuple[str, str, str, list[str]]] = []
    for line in path.read_text().splitlines():
        if pin := _PIN.match(line):
            found.append((pin[1], pin[2], pin[3] or "", []))
        elif hashed := _HASH.search(line):
            found[-1][3].append(hashed[1])
    return found


def bill_of_materials(path: Path = LOCK) -> dict[str, Any]:
    """The document for the project as it stands."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    root = f"pkg:pypi/{name}@{version}"
    packages = [_component(*entry) for entry in locked(path)]
    components = [*packages, *map(_library, json.loads(LIBRARIES.read_text()))]
    content = json.dumps([root, components], sort_keys=True).encode()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "purl": root,
                "licenses": [{"expression": project["license"]}],
            }
        },
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": sorted(c["bom-ref"] for c in components)}],
    }


def _component(name: str, version: str, marker: str, hashes: list[str]) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    properties = [{"name": "tilewright:file-sha256", "value": digest} for digest in hashes]
    if marker:
        properties.append({"name": "tilewright:needed-if", "value": marker})
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": "optional" if marker else "required",
        "properties": properties,
    }


def _library(package: dict[str, Any]) -> dict[str, Any]:
    """JavaScript that pages hold, which is in the package itself, with what its file is made of."""
    component = _of_npm(package)
    component["hashes"] = [{"alg": "SHA-256", "content": package["sha256"]}]
    component["properties"] = [{"name": "tilewright:file", "value": package["file"]}]
    component["components"] = [_of_npm(held, f"{package['file']}:") for held in package["holds"]]
    return component


def _of_npm(package: dict[str, Any], inside: str = "") -> dict[str, Any]:
    purl = f"pkg:npm/{package['name'].replace('@', '%40')}@{package['version']}"
    return {
        "type": "library",
        "bom-ref": f"{inside}{purl}",
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
        "scope": "required",
        "licenses": [{"license": {"id": package["license"]}}],
    }


if __name__ == "__main__":
    json.dump(bill_of_materials(), sys.stdout, indent=1)
    print()
