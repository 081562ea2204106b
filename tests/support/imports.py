"""Which module imports which, in functions and for types included, and the circles among them.

`python -m tests.support.imports` prints the circles of the package.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, those inside others too; a tenth of what `ast.walk` visits."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            inside = getattr(node, field, ())
            if isinstance(inside, list):  # of an expression it is one node
                todo += inside
        yield node


def module_name(path: Path, source: Path) -> str:
    """The dotted name of a file; a package's is that of its folder."""
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def import_graph(source: Path = SOURCE) -> dict[str, set[str]]:
    """For every module of a source tree the other modules of it that it imports."""
    files = {module_name(path, source): path for path in source.rglob("*.py")}
    return {
        name: {found for found in _imported(name, path) for found in [_module_of(found, files)] if found}
        - {name}
        for name, path in files.items()
    }


def _imported(name: str, path: Path) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _module_of(imported: str, files: Mapping[str, Path]) -> str | None:
    """The module that an import loads: itself, or the one that has the name."""
    return next((n for n in (imported, imported.rpartition(".")[0]) if n in files), None)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules each of which imports the next, the first again at the end; empty where there are none.

    >>> circle({"a": {"b"}, "b": {"a"}, "c": set()}) in (["a", "b", "a"], ["b", "a", "b"])
    True
    """
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


if __name__ == "__main__":
    print(" -> ".join(circle(import_graph())) or "no module imports itself through another")
