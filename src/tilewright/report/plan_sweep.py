"""Networks planned for machines, side by side: what a sweep gives, and its page with the Pareto front."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from pathlib import Path

from tilewright.cost.base import Objective
from tilewright.files import write_output
from tilewright.hardware.quantity import number_of
from tilewright.report.figure import folded, heading, html_table, note, page
from tilewright.report.sweep import Compared, pareto_pictures
from tilewright.results import Result, Table, about, in_json
from tilewright.text.formatting import counted


@dataclass(frozen=True, slots=True)
class SweptPlan:
    """A network on a machine: what its best plan takes, or why there is none."""

    network: str
    error: str | None
    time_s: float | None = None
    bound_s: float | None = field(default=None, metadata=about("Lower bound of all plans that run this way."))
    energy_j: float | None = field(default=None, metadata=about("Null without energies of the machine."))
    main_bytes: int | None = field(default=None, metadata=about("Read and written past main memory's port."))
    recipe: str | None = None
    status: str | None = None
    optimal_among: str | None = field(
        default=None, metadata=about("The space in which the plan is proven to be the best.")
    )
    planning_s: float | None = None


@dataclass(frozen=True, slots=True)
class SweptMachine:
    """A machine, by its values in the order of the axes, and the networks planned for it.

    `is_best`: no other machine with the same batch is as good in time, energy and area, and better in one.
    """

    target: str
    batch: int | None
    values: tuple[str, ...]
    area_mm2: float | None = field(
        metadata=about(
            "Of buffers and multipliers, by tables; at 45 nm without technology_nm; null: unknown."
        )
    )
    plans: tuple[SweptPlan, ...]
    energy_source: str
    is_best: bool = False

    @in_json
    def mean_time_s(self) -> float | None:
        """The geometric mean over networks; of a single one its time. Null where one has no plan."""
        return _geometric_mean([plan.time_s for plan in self.plans])

    @in_json
    def mean_energy_j(self) -> float | None:
        """The geometric mean over networks; null where one has no plan, or the machine no energies."""
        return _geometric_mean([plan.energy_j for plan in self.plans])


@dataclass(frozen=True, slots=True, repr=False)
class PlanSweep(Result):
    """Networks planned for machines; every figure is an estimate."""

    networks: tuple[str, ...]
    recipe: str = field(metadata=about("Or the planners that are named in its place."))
    objective: Objective
    axes: tuple[str, ...]
    machines: tuple[SweptMachine, ...]
    is_interrupted: bool = field(
        metadata=about("Whether the user ended it: what was not planned until then is left out.")
    )

    @property
    def front(self) -> tuple[SweptMachine, ...]:
        """The machines that no other one beats, the fastest first."""
        return tuple(sorted((m for m in self.machines if m.is_best), key=lambda m: m.mean_time_s or inf))

    def named(self, machine: SweptMachine) -> str:
        """A machine by its values."""
        said = (
            f"{axis.split('.', 1)[-1]} = {value}"
            for axis, value in zip(self.axes, machine.values, strict=True)
        )
        return ", ".join(said) or machine.target

    def short(self, network: str) -> str:
        """A network's file without its folders, where that names no other one."""
        name = Path(network).name
        return name if [Path(other).name for other in self.networks].count(name) == 1 else network

    def tables(self) -> Sequence[Table]:
        """A row for each machine and network."""
        axes = tuple(axis.split(".", 1)[-1] for axis in self.axes) or ("target",)
        heads = (*axes, "network", "ms", "at least", "gap", "mJ", "mm²", "unbeaten", "recipe")
        rows = []
        for machine in self.machines:
            values = machine.values if self.axes else (machine.target,)
            for plan in machine.plans:
                rows.append((*values, self.short(plan.network), *_figures(machine, plan)))
        title = f"planned by {self.recipe} for {self.objective}"
        right = tuple(range(len(axes) + 1, len(axes) + 6))
        return (Table(heads, tuple(rows), title, right, (len(axes) + 2,)),)

    def lines(self) -> Sequence[str]:
        """What the area is of, and whether all was planned."""
        lines = ["area: buffers and multipliers, at 45 nm without technology_nm; no wires, no control"]
        return [*lines, *(["interrupted: what was not reached is left out"] if self.is_interrupted else [])]

    def save_page(self, path: str | os.PathLike[str]) -> Path:
        """Draw time, energy and area against each other, and all plans, as an HTML file."""
        written = Path(path)
        write_output(written, plan_sweep_page(self).encode())
        return written

    def __repr__(self) -> str:
        return f"PlanSweep({', '.join(self.networks)}: {counted(len(self.machines), 'machine')})"


def _figures(machine: SweptMachine, plan: SweptPlan) -> tuple[str, ...]:
    """The cells of a plan behind its network."""
    if plan.time_s is None or plan.bound_s is None:
        return ("-", "-", "-", "-", "-", "", plan.error or "")
    gap = f"{100 * (plan.time_s / plan.bound_s - 1):.0f} %" if plan.bound_s else "-"
    return (
        f"{plan.time_s * 1e3:.4g}",
        f"{plan.bound_s * 1e3:.4g}",
        gap,
        "-" if plan.energy_j is None else f"{plan.energy_j * 1e3:.4g}",
        "-" if machine.area_mm2 is None else f"{machine.area_mm2:,.3g}",
        "yes" if machine.is_best else "",
        plan.recipe or "",
    )


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    if len(known) < len(values) or not known:
        return None
    return known[0] if len(known) == 1 else exp(sum(map(log, known)) / len(known))


_TIME, _ENERGY, _AREA = "time in ms", "energy in mJ", "area in mm²"
_SAID = (
    "Marked and joined: machines of the front, than which no other one with the same batch is as good in "
    "time, energy and area, and better in one. A dot leads to the plans behind it. Of several networks "
    "figures are geometric means. Figures are estimates; areas are of buffers and multipliers, at 45 nm "
    "where the file gives no technology_nm, without wires, control and interfaces."
)
_HEADS = ("network", "ms", "at least, ms", "energy, mJ", "past main memory, MB", "recipe", "answer")


def plan_sweep_page(sweep: PlanSweep) -> str:
    """One HTML page that needs no network; what has no plan is listed with the reason."""
    networks = ", ".join(map(sweep.short, sweep.networks))
    what = f"{networks}, planned by {sweep.recipe} for {sweep.objective}."
    parts = [note(what), note(_SAID)]
    if sweep.is_interrupted:
        parts.append(note("Interrupted: what was not reached is left out."))
    numbered = list(enumerate(sweep.machines))
    swept = [axis.split(".", 1)[-1] for axis in sweep.axes]
    compared = [
        Compared(
            sweep.named(machine),
            machine.is_best,
            f"machine{number}",
            {
                **dict(zip(swept, map(number_of, machine.values), strict=False)),
                _TIME: None if machine.mean_time_s is None else machine.mean_time_s * 1e3,
                _ENERGY: None if machine.mean_energy_j is None else machine.mean_energy_j * 1e3,
                _AREA: machine.area_mm2,
            },
        )
        for number, machine in numbered
    ]
    along = [(axis, figure) for axis in swept for figure in (_TIME, _ENERGY, _AREA)]
    parts += pareto_pictures(compared, ((_TIME, _ENERGY), (_TIME, _AREA), (_AREA, _ENERGY), *along))
    axes = sweep.axes or ("target",)
    rows = [
        (
            number,
            *(machine.values or (machine.target,)),
            *(_shown(compared[number].figures[figure]) for figure in (_TIME, _ENERGY, _AREA)),
            "yes" if machine.is_best else "",
        )
        for number, machine in numbered
    ]
    parts += [heading("Machines"), html_table(("machine", *axes, _TIME, _ENERGY, _AREA, "unbeaten"), rows)]
    parts += [_machine(sweep, number, machine) for number, machine in numbered]
    return page(f"{networks} on {counted(len(sweep.machines), 'machine')}", parts)


def _machine(sweep: PlanSweep, number: int, machine: SweptMachine) -> str:
    """What is behind a dot: each network's plan, or why there is none."""
    rows = [
        (
            sweep.short(plan.network),
            _shown(None if plan.time_s is None else plan.time_s * 1e3),
            _shown(None if plan.bound_s is None else plan.bound_s * 1e3),
            _shown(None if plan.energy_j is None else plan.energy_j * 1e3),
            _shown(None if plan.main_bytes is None else plan.main_bytes / 1e6),
            plan.recipe or "-",
            plan.error
            or (f"optimal among {plan.optimal_among}" if plan.optimal_among else plan.status or ""),
        )
        for plan in machine.plans
    ]
    mark = "front: " if machine.is_best else ""
    said = [html_table(_HEADS, rows), note(f"Energies: {machine.energy_source or 'none'}.")]
    return folded(f"machine {number}, {mark}{sweep.named(machine)}", said, anchor=f"machine{number}")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
