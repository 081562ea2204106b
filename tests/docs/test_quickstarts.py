"""The quickstarts do what they say: each of their commands ends well, and their programs run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.support.cli import tilewright

PAGES = sorted((Path(__file__).parents[2] / "docs" / "quickstart").glob("*.md"))
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_programs_of_a_quickstart_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for language, text in blocks:
        if language == "python":
            exec(compile(text, page.name, "exec"), {})
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            assert program == "tilewright"
            words, output = (words[: words.index(">")], words[-1]) if ">" in words else (words, "")
            result = tilewright(*words)
            assert result.code == 0, f"{line}: {result.err}"
            if output:
                Path(output).write_text(result.out)
