"""`tilewright targets`: where a network can run."""

from __future__ import annotations

import typer

from tilewright.cli.output import JSON_OPTION, print_json, print_table

_ABOUT = {
    "cpu": "generated machine code on this processor",
    "interpreter": "reference semantics in numpy; slow, for comparison",
    "null": "checks and plans everything, runs nothing",
}


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("targets", rich_help_panel=panel)(targets)


def targets(
    name: str | None = typer.Argument(None, help="Describe this one; `host` prints this machine's YAML."),
    as_json: bool = JSON_OPTION,
) -> None:
    """List targets, or describe one. Example: `tilewright targets host`."""
    from tilewright.targets import TARGETS

    if name == "host":
        from tilewright.hardware.host import host_machine

        machine = host_machine()
        if as_json:
            print_json("machine", {"machine": machine.model_dump(mode="json", exclude_none=True)})
        else:
            import yaml

            document = machine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
        return
    names = TARGETS.names() if name is None else (name,)
    for known in names:
        TARGETS.get(known)
    rows = [(n, _ABOUT.get(n, "plugin")) for n in names]
    if as_json:
        print_json("targets", {"targets": [{"name": n, "about": a} for n, a in rows]})
    else:
        print_table(("target", "what it is"), rows)
