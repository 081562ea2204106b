"""What the site has beside the pages in this folder: `mkdocs build` calls these functions.

Pages are written to be read in the repository, too. Here links to files that the site does not have become
their text, or links to `repo_url` where one is set; files above this folder that people read become pages;
the reference is made of what `import tilewright as tw` offers. The index gives the order of the pages. The
tool draws the pictures.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ABOVE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages made of files above this folder."""
PICTURES = {
    "quickstart/research.md": ("graph.html", "a network's graph, by kernel", "view model.onnx -o graph.html"),
    "quickstart/accelerators.md": (
        "timeline.html",
        "what units of an accelerator do over time",
        "simulate model.onnx -t stcp920 --html timeline.html",
    ),
}
"""Of some pages a picture: its file, what it shows, the command that draws it."""
_NETWORK = "zoo build squeezenet1_1 --image 64 -o model.onnx"
_LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
_KINDS = {"errors": "Errors", "classes": "Classes", "functions": "Functions"}


def on_config(config: Any) -> Any:
    """The order of the pages: that of the index, whose sections become those of the site."""
    nav: list[Any] = ["index.md"]
    for section in (DOCS / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        targets = [link[2] for link in _LINK.finditer(text)]
        nav.append({title: [_uri_of((DOCS / target).resolve()) for target in targets]})
    config.nav = [*nav, {"Source files": "files.md"}, "changelog.md"]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    for page, source in ABOVE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(
            File.generated(config, page, content=_changelog(text) if page == "changelog.md" else text)
        )
    files.append(File.generated(config, "files.md", content=source_files()))
    for name, text in pictures().items():
        files.append(File.generated(config, f"pictures/{name}", content=text))
    return files


def source_files() -> str:
    """The page of all source files, by folder: what the first line of each says it is."""
    package = ROOT / "src" / "tilewright"
    way_in = "The way in is [where things are](architecture.md)."
    parts = [f"# Source files\n\nWhat the first line of each says it is. {way_in}\n"]
    for init in sorted(package.rglob("__init__.py")):
        folder = init.parent
        parts.append(f"\n## {folder.relative_to(package.parent).as_posix()}/\n\n{first_line(init)}\n\n")
        parts += [
            f"* `{file.name}`: {first_line(file)}\n" for file in sorted(folder.glob("*.py")) if file != init
        ]
    return "".join(parts)


def first_line(file: Path) -> str:
    """The first paragraph of a file's docstring, as one line of Markdown."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    pieces = " ".join(text.split("\n\n")[0].split()).split("`")
    pieces[::2] = [re.sub(r"([<>*_|\[\]])", r"\\\1", piece) for piece in pieces[::2]]  # not what is code
    return "`".join(pieces)


@functools.cache
def pictures() -> Mapping[str, str]:
    """Pages that the tool draws, by their file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        for command in (_NETWORK, *(command for _, _, command in PICTURES.values())):
            words = [sys.executable, "-m", "tilewright", *command.split(), "--quiet"]
            subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        return {name: (Path(folder) / name).read_text(encoding="utf-8") for name, _, _ in PICTURES.values()}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A page with its links as the site has them."""
    uri = page.file.src_uri
    folder = ROOT if uri in ABOVE else (DOCS / uri).parent
    if uri == "reference.md":
        markdown += reference()
    if uri in PICTURES:
        name, what, command = PICTURES[uri]
        drawn = f"`tilewright {command}` drew [{what}](../pictures/{name}) when this site was built."
        markdown += f"\n## A picture\n\n{drawn}\n"

    def replaced(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target:
            return match[0]
        file = Path(os.path.normpath(folder / path))
        inside = _uri_of(file)
        if inside is not None and files.get_file_from_path(inside) is not None:
            relative = os.path.relpath(inside, os.path.dirname(uri) or ".")
            return f"[{label}]({relative}{'#' + anchor if anchor else ''})"
        if config.repo_url:
            return f"[{label}]({config.repo_url.rstrip('/')}/blob/main/{file.relative_to(ROOT)})"
        return label

    return _LINK.sub(replaced, markdown)


def _uri_of(file: Path) -> str | None:
    """The site's name of a file of the repository."""
    for page, source in ABOVE.items():
        if file == ROOT / source:
            return page
    return file.relative_to(DOCS).as_posix() if file.is_relative_to(DOCS) else None


def _changelog(text: str) -> str:
    """The changelog, the newest first, with the entries that are not gathered yet."""
    head, heading, rest = text.partition("\n## ")
    paths = (path for path in sorted((ROOT / "changelog.d").glob("*.md")) if path.name != "README.md")
    entries = (entry for path in paths for entry in _entries(path.read_text(encoding="utf-8")))
    waiting = [f"* {entry}" for entry in entries]
    return "\n".join((head, *(["## Next release\n", *waiting] if waiting else []), heading)) + rest


def _entries(fragment: str) -> list[str]:
    """What a fragment says, a line for each paragraph or item of a list."""
    parts = re.split(r"\n\s*\n|^[-*] ", fragment, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in parts if part.strip()]


def reference() -> str:
    """The rest of the page of reference: a directive for each public name, by kind."""
    sys.path.insert(0, str(ROOT / "src"))
    import tilewright
    import tilewright.api

    by_kind: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for name in sorted(tilewright.__all__, key=str.lower):
        module, attribute = tilewright._HOMES[name]
        if module == "tilewright.api":
            homes = tilewright.api._HOMES.items()
            module = next(home for home, names in homes if attribute in names)
        kind = "errors" if module == "tilewright.errors" else "classes" if name[0].isupper() else "functions"
        options = {"heading": f"tw.{name}", "toc_label": f"tw.{name}", "show_root_heading": "true"}
        lines = "".join(f"      {key}: {value}\n" for key, value in options.items())
        by_kind[kind].append(f"::: {module}.{attribute}\n    options:\n{lines}")
    parts = (
        f"## {_KINDS[kind]}\n\n" + "\n".join(by_kind[kind]) for kind in ("functions", "classes", "errors")
    )
    return "\n" + "\n".join(parts)
