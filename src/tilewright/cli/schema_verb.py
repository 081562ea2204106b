"""`tilewright schema`: JSON Schemas, for editors and readers of our JSON."""

from __future__ import annotations

import json
from typing import Any

import typer

from tilewright.cli.output import print_table, say, wants_json
from tilewright.errors import UsageError

_INPUTS = {"machine": "a machine described in YAML", "options": "the options of a compilation"}


def schema(
    name: str | None = typer.Argument(None, help="machine, options, or the kind of a report."),
) -> None:
    """Print a JSON Schema; without a name, list them.

    Example: `tilewright schema machine > machine.schema.json`.
    """
    from tilewright.cli.schemas import KINDS, report_schema, summary_of

    if name is None:
        reports = {kind: summary_of(kind) for kind in KINDS}
        everything = {**_INPUTS, **{k: v for k, v in reports.items() if k not in _INPUTS}}
        if wants_json():
            say(json.dumps(everything, indent=2))
        else:
            print_table(("schema", "of"), list(everything.items()))
        return
    if name == "machine":
        from tilewright.hardware.machine_schema import machine_schema

        document = machine_schema()
    elif name == "options":
        document = _options_schema()
    elif name in KINDS:
        document = report_schema(name)
    else:
        raise UsageError(f"unknown schema {name!r}: known are {', '.join({**_INPUTS, **KINDS})}.")
    say(json.dumps(document, indent=2))


def _options_schema() -> dict[str, Any]:
    import dataclasses

    from pydantic import TypeAdapter

    from tilewright.options import Options

    document = TypeAdapter(Options).json_schema()
    # Written as its text.
    del document["$defs"]["TargetRef"]
    document["properties"]["target"] = {"default": str(Options().target), "title": "Target", "type": "string"}
    for field in dataclasses.fields(Options):
        document["properties"][field.name]["description"] = Options.help(field.name)
    return document
