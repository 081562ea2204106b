"""`tilewright targets`: where a network can run."""

from __future__ import annotations

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, print_json, print_table, say

HOST = "host"
_ABOUT = {
    "cpu": "generated machine code on this processor",
    "interpreter": "reference semantics in numpy: slow, for comparison",
    "null": "checks and plans everything, runs nothing",
}


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "targets", targets, panel)


def targets(
    name: str | None = typer.Argument(None, help="Describe this one; `host` prints this machine as YAML."),
    as_json: bool = JSON_OPTION,
) -> None:
    """List targets, or describe one. Example: `tilewright targets host`."""
    from tilewright.targets import TARGETS

    if name == HOST:
        _print_host(as_json)
        return
    names = TARGETS.names() if name is None else (name,)
    for known in names:
        TARGETS.get(known)
    rows = [(n, _ABOUT.get(n, "from a plugin")) for n in names]
    if as_json:
        print_json("targets", {"targets": [{"name": n, "about": a} for n, a in rows]})
        return
    print_table(("target", "what it is"), rows)
    if name in (None, "cpu"):
        _print_processor()


def _print_processor() -> None:
    from tilewright.hardware.probe import probe_host
    from tilewright.targets.cpu.isa import ISA_NAMES, host_isa

    facts, isa = probe_host(), host_isa()
    threads = f"{facts.num_threads} thread{'s' if facts.num_threads > 1 else ''}"
    others = ", ".join(name for name in ISA_NAMES if name != isa.name)
    say(f"cpu here: {facts.cpu_name}, {threads}, {isa.name} (there is code for {others}, too)")


def _print_host(as_json: bool) -> None:
    from tilewright.hardware.host import host_machine

    machine = host_machine()
    if as_json:
        print_json("host", {"machine": machine.model_dump(mode="json", exclude_none=True)})
        return
    import yaml

    document = machine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    say(yaml.safe_dump(document, sort_keys=False), end="")
