"""The pages under docs/ are true: links lead somewhere, quoted code is in the files it is quoted from."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.write_cli import document

from tilewright import zoo
from tilewright.cli.main import VERBS
from tilewright.registry import Registry

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
INDEX = ROOT / "docs" / "index.md"
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
MAP = ROOT / "docs" / "architecture.md"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")


def links(page: Path) -> list[Path]:
    """Files and folders that a page links to."""
    return [(page.parent / found).resolve() for found in LINK.findall(page.read_text()) if "://" not in found]


def quotes(page: Path) -> Iterator[str]:
    for indent, code in FENCE.findall(page.read_text()):
        yield textwrap.dedent("\n".join(line.removeprefix(indent) for line in code.rstrip().splitlines()))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not link.exists()] == []


def test_the_index_has_every_page_in_one_line_and_the_readme_leads_to_it() -> None:
    lines = [line for line in INDEX.read_text().splitlines() if line.startswith("| [")]
    linked = [(INDEX.parent / target).resolve() for line in lines for target in LINK.findall(line)]
    assert sorted(linked) == sorted({*PAGES, ROOT / "CONTRIBUTING.md"} - {INDEX})
    assert all(line.count("|") == 3 for line in lines)
    assert INDEX in links(ROOT / "README.md")


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_code_in_guides_is_quoted_from_the_files_they_link(page: Path) -> None:
    sources = [textwrap.dedent(link.read_text()) for link in links(page) if link.suffix == ".py"]
    found = list(quotes(page))
    assert found
    for quote in found:
        lines = [line.strip() for line in quote.splitlines()]
        assert any(contains(source, lines) for source in sources), quote


def contains(source: str, lines: list[str]) -> bool:
    stripped = [line.strip() for line in source.splitlines()]
    return any(stripped[i : i + len(lines)] == lines for i in range(len(stripped)))


@pytest.mark.parametrize("page", [*GUIDES, MAP], ids=lambda p: p.name)
def test_paths_in_code_type_exist(page: Path) -> None:
    """A path in code type is one of the repository, of the package, or the name of a linked file."""
    linked = links(page)
    missing = []
    for text in INLINE.findall(page.read_text()):
        if not re.fullmatch(r"[\w./-]+\.(py|md|txt|json|yaml)|[\w/-]+/", text):
            continue
        roots = (ROOT, ROOT / "src" / "tilewright", page.parent, *(link.parent for link in linked))
        if not any((root / text).exists() for root in roots):
            missing.append(text)
    assert missing == []


@functools.cache
def words_of_the_code() -> frozenset[str]:
    files = (path for top in ("src", "tests") for path in (ROOT / top).rglob("*.py"))
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text()))


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_names_in_code_type_stand_in_the_code(page: Path) -> None:
    """Names of functions, classes and tests in code type exist somewhere in the sources or tests."""
    names = {
        part
        for found in INLINE.findall(page.read_text())
        if re.fullmatch(r"[A-Za-z_][\w.]*", found)
        for part in found.split(".")
    }
    assert names
    assert sorted(names - words_of_the_code() - {"onnx"}) == []


def test_the_map_names_every_module_folder_and_planner() -> None:
    package = ROOT / "src" / "tilewright"
    linked = set(links(MAP))
    for folder in sorted(p.parent for p in package.glob("*/__init__.py")):
        assert folder in linked or any(folder in link.parents for link in linked), folder.name
    from tilewright.memory import MEMORY_PLANNERS
    from tilewright.partition import PARTITIONERS
    from tilewright.schedule import SCHEDULERS
    from tilewright.targets import TARGETS

    registries: list[Registry] = [MEMORY_PLANNERS, PARTITIONERS, SCHEDULERS, TARGETS]
    text = MAP.read_text()
    for registry in registries:
        for name in registry.names():
            assert f"`{name}`" in text or f"`{name}/`" in text, name


def test_networks_that_guides_name_are_in_the_zoo() -> None:
    text = (ROOT / "docs" / "guides" / "add_scheduler.md").read_text()
    named = re.search(r"networks with parallel branches \(([^)]+)\)", text)
    assert named is not None
    assert set(INLINE.findall(named.group(1))) <= set(zoo.names())


def test_the_page_of_the_command_line_is_current() -> None:
    """`python -m tests.docs.write_cli > docs/cli.md` writes it anew."""
    assert (ROOT / "docs" / "cli.md").read_text() == document()


def test_the_page_of_the_command_line_has_every_verb() -> None:
    text = document()
    assert all(f"## `tilewright {verb}`" in text for verb in VERBS)
    assert all(f"| {code} |" in text for code in (0, 1, 2, 3, 4, 5, 130))
