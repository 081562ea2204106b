"""`python -m benchmarks NAME ...`: one benchmark; without a name, what there is."""

from __future__ import annotations

import ast
import importlib
import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path

from benchmarks.command import Parser

FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Each benchmark with the first line of its text: modules that define `main` and `options`."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if {"main", "options"} <= functions and path.stem != "__main__":
            found[path.stem] = (ast.get_docstring(tree) or "").splitlines()[0]
    return found


def main(arguments: list[str]) -> object:
    """Run the benchmark that is named first."""
    known = names()
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, known))
        print("python -m benchmarks NAME [--help]\n")
        print("\n".join(f"{name:{width}}  {about}" for name, about in known.items()))
        return None
    name, *rest = arguments
    if name not in known:
        raise SystemExit(f"no benchmark {name!r}: there are {', '.join(known)}")
    module = importlib.import_module(f"benchmarks.{name}")
    parser = Parser(
        prog=f"python -m benchmarks {name}",
        description=module.__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    module.options(parser)
    return module.main(parser.parse_args(rest))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))  # type: ignore[arg-type]  # a benchmark's exit code, or none
