"""What comments, docstrings and pages cite is in the repository: files by path, modules by `python -m`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.imports import statements

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "requirements")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FILE = re.compile(r"(?<![\w/.<-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|sh))\b(?!\w)")
FOLDER = re.compile(r"(?<![\w./-])((?:spec|shared|papers|docs|tests|src|benchmarks|requirements)/[\w./-]*)")
MODULE = re.compile(r"python -m ((?:tests|tilewright|benchmarks)[\w.]*)")
PLACEHOLDER = re.compile(r"[A-Z]+\.\w+|out\.md")
"""A file of the reader's."""
BLOCK_NAME = re.compile(r"^( *```\w+) \S+$", re.MULTILINE)
"""What a page calls a block: a file of the reader's too."""


def prose(path: Path) -> Iterator[str]:
    """Comments and docstrings of a source file."""
    text = path.read_text()
    if not _may_cite(text):
        return
    if any(_may_cite(line.partition("#")[2]) for line in text.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string
    for node in statements(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


def _may_cite(text: str) -> bool:
    return any(pattern.search(text) for pattern in (FILE, FOLDER, MODULE))


def missing(path: Path, text: str, names: frozenset[str]) -> Iterator[str]:
    """What a text cites and the repository lacks. A path begins at any folder around the file that cites it,
    at the package or at the tests; a name alone may be that of any file."""
    places = [*path.parents[: len(path.relative_to(ROOT).parts)], ROOT / "src" / "tilewright", ROOT / "tests"]
    for cited in (*FILE.findall(text), *(folder.rstrip(".") for folder in FOLDER.findall(text))):
        if "/" not in cited:
            if cited not in names and not PLACEHOLDER.fullmatch(cited):
                yield cited
        elif not any((place / cited).exists() for place in places) and not PLACEHOLDER.fullmatch(
            Path(cited).name
        ):
            yield cited
    for module in MODULE.findall(text):
        stem = ROOT.joinpath(*module.rstrip(".").split("."))
        stem = ROOT / "src" / stem.relative_to(ROOT) if module.startswith("tilewright") else stem
        if not stem.with_suffix(".py").exists() and not (stem / "__main__.py").exists():
            yield f"python -m {module}"


@pytest.fixture(scope="module")
def names() -> frozenset[str]:
    return frozenset(path.name for path in (*SOURCES, *PAGES, *(ROOT / "requirements").iterdir()))


def test_what_sources_cite_is_in_the_repository(names: frozenset[str]) -> None:
    cited = {
        (str(p.relative_to(ROOT)), c) for p in SOURCES for text in prose(p) for c in missing(p, text, names)
    }
    assert sorted(cited) == []


def test_what_pages_cite_is_in_the_repository(names: frozenset[str]) -> None:
    texts = {page: BLOCK_NAME.sub(r"\1", page.read_text()) for page in PAGES}
    cited = {(str(p.relative_to(ROOT)), c) for p, text in texts.items() for c in missing(p, text, names)}
    assert sorted(cited) == []


@pytest.mark.parametrize(
    "text", ["spec/cpu.md section 3", "nowhere.py", "tests/none/x.py", "python -m tests.none"]
)
def test_what_is_not_there_is_named(text: str, names: frozenset[str]) -> None:
    assert list(missing(SOURCES[0], text, names))
