"""The JavaScript that pages hold, from the npm registry: `python requirements/page_libraries.py [--upgrade]`.

`libraries.json` says which file of which package is in the project, with the hash that npm gives the package
and that of the file. Without --upgrade the same versions are fetched, and anything but what is locked is
an error; with it the newest. Licences of all packages that the files hold are gathered in `LICENSES.txt`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src" / "tilewright" / "report" / "libraries"
LOCK = FOLDER / "libraries.json"
LICENCES = FOLDER / "LICENSES.txt"
# Not in the files: what Plot expects beside it, and what d3-dsv needs on a command line.
_APART = ("d3", "commander", "iconv-lite", "rw")
_TEXTS = ("LICENSE", "LICENSE.txt", "LICENSE.md", "license", "LICENCE")


def locked() -> list[dict[str, Any]]:
    """The packages: name, version, license, integrity, path in the package, file, sha256, what it holds."""
    packages: list[dict[str, Any]] = json.loads(LOCK.read_text())
    return packages


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Fetch, compare or lock, write."""
    is_upgrade = "--upgrade" in sys.argv[1:]
    packages = locked()
    asked = [p["name"] if is_upgrade else f"{p['name']}@{p['version']}" for p in packages]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "npm",
            "install",
            "--prefix",
            folder,
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            *asked,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        installed = json.loads((Path(folder) / "package-lock.json").read_text())["packages"]
        modules = Path(folder) / "node_modules"
        for package in packages:
            found = installed[f"node_modules/{package['name']}"]
            source = modules / package["name"] / package["path"]
            fresh = {
                "version": found["version"],
                "license": found["license"],
                "integrity": found["integrity"],
                "sha256": sha256(source),
            }
            if not is_upgrade and any(package[name] != value for name, value in fresh.items()):
                sys.exit(f"{package['name']}: not what is locked: {fresh}")
            package.update(fresh)
            package["holds"] = [
                {"name": name, "version": installed[place]["version"], "license": installed[place]["license"]}
                for name, place in sorted(_needed(package["name"], installed).items())
            ]
            (FOLDER / package["file"]).write_bytes(source.read_bytes())
        LOCK.write_text(json.dumps(packages, indent=1) + "\n")
        LICENCES.write_text(_licences(packages, modules))


def _needed(name: str, installed: dict[str, Any]) -> dict[str, str]:
    """What a package needs and its file therefore holds, and where that was installed."""
    found: dict[str, str] = {}
    waiting = list(installed[f"node_modules/{name}"].get("dependencies", ()))
    while waiting:
        needed = waiting.pop()
        if needed in found or needed in _APART:
            continue
        place = f"node_modules/{needed}"
        if place not in installed:
            sys.exit(
                f"{needed}: not installed once for all; look where it is and take its licence from there"
            )
        found[needed] = place
        waiting += installed[place].get("dependencies", ())
    return found


def _licences(packages: list[dict[str, Any]], modules: Path) -> str:
    parts = ["Libraries that pages hold, and what these hold, with their licences.\n"]
    for package in packages:
        for held in (package, *package["holds"]):
            folder = modules / held["name"]
            text = next((folder / name for name in _TEXTS if (folder / name).exists()), None)
            if text is None:
                sys.exit(f"{held['name']}: has no file of its licence, {held['license']}")
            title = f"{held['name']} {held['version']} ({held['license']}), in {package['file']}"
            parts.append(f"{'=' * 80}\n{title}\n{'=' * 80}\n\n{text.read_text().strip()}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
