"""`tilewright schema`: JSON Schemas, for editors and for those who read our JSON."""

from __future__ import annotations

import json
from typing import Any

import typer

from tilewright.cli.output import SCHEMA_VERSION, print_table
from tilewright.errors import UsageError

_ABOUT = {"machine": "a machine described in YAML", "options": "the options of a compilation"}


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("schema", rich_help_panel=panel)(schema)


def schema(name: str | None = typer.Argument(None, help="machine, options or the kind of a report.")) -> None:
    """Print a JSON Schema. Example: `tilewright schema machine > machine.schema.json`."""
    from tilewright.cli.schemas import REPORTS

    if name is None:
        rows = [*_ABOUT.items(), *((kind, f"`tilewright {kind} --json`") for kind in REPORTS)]
        print_table(("schema", "of"), rows)
        return
    if name == "machine":
        from tilewright.hardware.machine import machine_schema

        document = machine_schema()
    elif name == "options":
        document = _options_schema()
    elif name in REPORTS:
        document = REPORTS[name].document(SCHEMA_VERSION)
    else:
        raise UsageError(f"unknown schema {name!r}: known are {', '.join([*_ABOUT, *REPORTS])}.")
    typer.echo(json.dumps(document, indent=2))


def _options_schema() -> dict[str, Any]:
    import dataclasses

    from pydantic import TypeAdapter

    from tilewright.options import Options

    document = TypeAdapter(Options).json_schema()
    for field in dataclasses.fields(Options):
        document["properties"][field.name]["description"] = Options.help(field.name)
    return document
