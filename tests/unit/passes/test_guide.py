"""docs/guides/add_pass.md shows what is really there."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

from tilewright.passes import recognise_mish

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guides" / "add_pass.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


def test_the_code_shown_is_the_code_of_the_example() -> None:
    source = inspect.getsource(recognise_mish)
    shown = blocks("python")
    assert len(shown) == 2
    for block in shown:
        assert block in source


def test_the_text_shown_is_the_golden_text_of_the_example() -> None:
    (shown,) = blocks("text")
    golden = (ROOT / "tests" / "golden" / "passes" / "recognise-mish.txt").read_text(encoding="utf-8")
    assert golden.startswith(shown)


def test_the_files_named_exist() -> None:
    named = set(re.findall(r"`((?:tests|passes|docs)/[\w/.-]+\.(?:py|txt|md))`", GUIDE))
    assert len(named) >= 5
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "src" / "tilewright" / path).exists(), path
