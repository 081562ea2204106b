"""The software bill of materials of a release: CycloneDX 1.6 as JSON, from the lock file of what runs.

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
    components = [_component(*entry) for entry in locked(path)]
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
                "licenses": [{"license": {"id": project["license"]}}],
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


if __name__ == "__main__":
    json.dump(bill_of_materials(), sys.stdout, indent=1)
    print()
