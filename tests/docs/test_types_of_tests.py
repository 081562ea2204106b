"""mypy checks tests, too: the folders that it does not check yet exist, and become fewer."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_FOLDERS, MOST_FILES = 16, 18
"""How many are left out. Lower them with the list; a new folder or file of tests is checked."""


def test_what_is_not_checked_exists_and_becomes_less() -> None:
    (left_out,) = (
        entry["module"]
        for entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
        if entry.get("ignore_errors")
    )
    folders = [name.removesuffix(".*") for name in left_out if name.endswith(".*")]
    files = [name for name in left_out if not name.endswith(".*")]
    assert all((ROOT / name.replace(".", "/")).is_dir() for name in folders)
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in files)
    assert (len(folders), len(files)) == (MOST_FOLDERS, MOST_FILES)
