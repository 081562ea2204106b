"""The wheel holds what an installation needs, and nothing that it does not."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tilewright"


@pytest.mark.slow
def test_a_wheel_holds_the_package_its_data_and_the_command(tmp_path: Path) -> None:
    """Slow: pip fetches the build backend into a fresh environment."""
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "-w", str(tmp_path), "-q"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        information = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(information).decode())
        entry_points = wheel.read(information.replace("METADATA", "entry_points.txt")).decode()
    expected = {
        f"tilewright/{p.relative_to(PACKAGE).as_posix()}"
        for p in PACKAGE.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert expected <= names
    assert "tilewright/py.typed" in names
    assert any(n.startswith("tilewright/zoo/data/") and n.endswith(".json") for n in names)
    assert "tilewright/zoo/data/NOTICE.md" in names
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    assert not any("__pycache__" in n or n.startswith(("tests/", "benchmarks/")) for n in names)
    assert "tilewright = tilewright.cli.start:main" in entry_points
    assert metadata["Name"] == "tilewright"
    assert path.stat().st_size < 5 << 20
