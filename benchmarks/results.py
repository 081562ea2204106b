"""What scripts of this folder share: CoSA's layers, their arguments, results in files and in pages."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.command import Namespace, Parser
from tilewright.api.host import Host
from tilewright.loops.problem import Problem, written
from tilewright.reproduce.cosa.paper import NETWORKS


def with_table(page: str, text: str, name: str = "table") -> str:
    """The page with other text between the markers `<!-- NAME -->` and `<!-- end -->`, or `end NAME`.

    Raises:
        ValueError: the page lacks one of the markers.
    """
    start, end = f"<!-- {name} -->\n", "<!-- end -->\n" if name == "table" else f"<!-- end {name} -->\n"
    head, found_start, rest = page.partition(start)
    _, found_end, tail = rest.partition(end)
    if not (found_start and found_end):
        markers = f"{start.strip()} ... {end.strip()}"
        raise ValueError(f"the page has no {markers}; put them where the table belongs")
    return f"{head}{start}{text}{end}{tail}"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What a run appended so far; a last line that was cut off does not count."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def commit(tree: Path = Path(__file__).parent.parent) -> str:
    """The commit of a source tree, with a plus sign if files were changed since."""
    git = ["git", "-C", str(tree)]
    found = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, check=False)
    return found.stdout.strip() + ("+" if changed.stdout else "")


def provenance() -> dict[str, Any]:
    """What every row begins with: the commit, the machine, and how busy that is (its load average)."""
    here = Host.here()
    return {
        "measured": {
            "commit": commit(),
            "machine": f"{here.cpu}, {here.cores} cores",
            "load_average": round(os.getloadavg()[0], 2),
        }
    }


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """One more row in a file, in the place of one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps({**provenance(), **row}).encode() + b"\n")


def cosa_options(parser: Parser, output: str) -> None:
    """What can be asked of a benchmark of CoSA's layers on a machine."""
    parser.add_argument("--machine", default="simba-cosa-repo")
    parser.add_argument("--output", default=Path(output))
    parser.add_argument("--page")
    parser.add_argument("--only", default="", help="networks, separated by commas")


def layers(only: str) -> list[tuple[str, Problem]]:
    """CoSA's layers with the network that each is of; `only` names networks, nothing stands for all."""
    chosen = only.split(",") if only else list(NETWORKS)
    return [(name, written(text)) for name, texts in NETWORKS.items() if name in chosen for text in texts]


def write(arguments: Namespace, document: Any, text: str, name: str = "table") -> None:
    """The samples as JSON, the tables as Markdown, printed and in the page if one was given."""
    arguments.output.with_suffix(".json").write_text(json.dumps(document, indent=1))
    arguments.output.with_suffix(".md").write_text(text)
    print(text)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, name))
