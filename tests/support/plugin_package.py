"""A package of someone else's, built from the blocks of a page and installed into a folder, offline."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path

_FILE = re.compile(r"^( *)```\w+ (\S+)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def files_of_page(page: Path) -> dict[str, str]:
    """Files by name: blocks that name one, those of one name after another."""
    files: dict[str, list[str]] = {}
    for indent, name, block in _FILE.findall(page.read_text(encoding="utf-8")):
        lines = [line.removeprefix(indent) for line in block.splitlines()]
        files.setdefault(name, []).append(textwrap.dedent("\n".join(lines)).strip())
    return {name: "\n\n\n".join(blocks) + "\n" for name, blocks in files.items()}


def build_wheel(files: dict[str, str], folder: Path) -> Path:
    """The wheel that a build of these files gives: modules, metadata and entry points of `pyproject.toml`."""
    project = tomllib.loads(files["pyproject.toml"])["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info = f"{name}-{version}.dist-info"
    entries = [
        line
        for group, members in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in members.items()), "")
    ]
    needs = "".join(f"Requires-Dist: {need}\n" for need in project.get("dependencies", ()))
    members = {path: text for path, text in files.items() if path.endswith(".py")} | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(entries),
    }
    record = "".join(
        f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in members.items()
    )
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def install(wheel: Path, folder: Path) -> None:
    """Install a wheel into a folder with pip, without network and without what it depends on."""
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    command = (sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(wheel))
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
