"""`tilewright targets`: where a network can run, and the machines that are described."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from tilewright.cli.output import note, print_document, print_table, print_tables, say, wants_json
from tilewright.cli.planners_verb import print_options
from tilewright.errors import UsageError
from tilewright.text.formatting import counted

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine


def targets(
    name: str | None = typer.Argument(
        None,
        help="Describe this one: a target; a machine as YAML to start from, by its name or its file; `host`, "
        "this machine as YAML.",
    ),
    as_table: bool = typer.Option(False, "--table", help="Show a machine as tables, with all sources."),
) -> None:
    """List targets, where models run, and machines, which `tilewright map` takes; or describe one.

    Example: `tilewright targets eyeriss > mine.yaml`, `tilewright targets mine.yaml --table`.
    """
    from tilewright.hardware.presets import HOST, preset_names
    from tilewright.planning.member_options import options_of
    from tilewright.target_ref import TargetRef
    from tilewright.targets import TARGETS, find_target

    if name == HOST:
        _print_host(as_table)
        return
    if name is not None and name not in TARGETS.names():
        _print_described(name, as_table)
        return
    if as_table:
        raise UsageError("--table is for machines; name one, such as eyeriss, or leave it out.")
    names = TARGETS.names() if name is None else (name,)
    infos, problems = [], list(TARGETS.plugin_problems())
    for known in names:
        try:
            infos.append(TARGETS.info(known))
        except UsageError as error:
            if name is not None:
                raise
            problems.append(str(error))
    machines = preset_names() if name is None else ()
    machine_options = options_of(find_target(TargetRef(machines[0]))) if machines else ()
    if wants_json():
        from tilewright.cli.facts import ListedMember, ListedOption, NamedMachine, Targets

        listed = Targets(
            tuple(ListedMember.of("targets", info) for info in infos),
            tuple(NamedMachine(n, _about_machine(n), _runs_networks(n)) for n in machines),
            tuple(map(ListedOption.of, machine_options)),
            tuple(problems),
        )
        print_document("targets", listed)
        return
    print_table(("target", "what it is"), [(i.name, i.about) for i in infos])
    for info in infos:
        print_options(info.name, info.options)
    if machines:
        rows = [(n, "simulate, map" if _runs_networks(n) else "map", _about_machine(n)) for n in machines]
        print_table(("machine", "for", "what it is"), rows)
        print_options("every machine", machine_options)
    if name in (None, "cpu"):
        _print_processor()
    for problem in problems:
        note(f"warning: {problem}")


def _about_machine(name: str) -> str:
    """The first sentence or its first half of a preset's description."""
    from tilewright.hardware.presets import load_preset

    return re.split(r"[.;](?: |$)", load_preset(name).description)[0]


def _runs_networks(name: str) -> bool:
    """Whether a preset lacks nothing that networks take."""
    from tilewright.hardware.missing_fields import missing_fields
    from tilewright.hardware.presets import load_preset

    return not missing_fields(load_preset(name))


def _print_described(name: str, as_table: bool) -> None:
    """A preset, or the machine of a file.

    Raises:
        UsageError: there is neither a target nor a machine of that name.
        MachineError: the file describes none.
    """
    from tilewright.hardware.citation import DescribedMachine, cited_numbers
    from tilewright.hardware.machine_file import machine_text
    from tilewright.hardware.presets import HOST, find_machine, is_file, preset_names, preset_text
    from tilewright.targets import TARGETS
    from tilewright.text.suggestions import closest

    if not is_file(name) and name not in preset_names():
        known = (*TARGETS.names(), HOST, *preset_names())
        raise UsageError(f"{name!r} is neither a target nor a machine: {closest(name, known)}.")
    machine = find_machine(name)
    if wants_json():
        document = machine.model_dump(mode="json", exclude_none=True)
        print_document("machine-description", DescribedMachine(document, cited_numbers(machine)))
    elif as_table:
        _print_machine(machine)
    else:
        say(machine_text(machine) if is_file(name) else preset_text(name), end="")


def _print_processor() -> None:
    from tilewright.hardware.host import host_instructions
    from tilewright.hardware.instruction_sets import INSTRUCTION_SETS, widest_in
    from tilewright.hardware.probe import probe_host

    facts, widest = probe_host(), widest_in(host_instructions())
    threads = counted(facts.num_threads, "thread")
    here = "no instruction set that code is made for" if widest is None else widest.name
    others = ", ".join(known.name for known in INSTRUCTION_SETS if known is not widest)
    say(f"cpu here: {facts.cpu_name}, {threads}, {here} (there is code for {others}, too)")


def _print_host(as_table: bool) -> None:
    from tilewright.hardware.host import host_machine
    from tilewright.hardware.machine_file import machine_text

    machine = host_machine()
    if wants_json():
        from tilewright.cli.facts import HostMachine

        print_document("host", HostMachine(machine.model_dump(mode="json", exclude_none=True)))
    elif as_table:
        _print_machine(machine)
    else:
        say(machine_text(machine), end="")


def _print_machine(machine: Machine) -> None:
    from tilewright.report.machine import machine_tables

    say(f"{machine.name}: {machine.description}" if machine.description else machine.name)
    print_tables(machine_tables(machine))
