"""What each part of a machine takes for mapped operators: energy of all accesses and operations, area."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.cost.count import Cost
from tilewright.hardware.components import USUAL_NM, components_of
from tilewright.hardware.machine import Machine
from tilewright.hardware.operator_view import multipliers
from tilewright.results import Table, about


@dataclass(frozen=True, slots=True)
class ComponentCost:
    """A level, a sort of unit, operators that are not mapped, or static power."""

    name: str
    energy_pj: float = field(metadata=about("Of all layers."))
    share: float = field(metadata=about("Of the energy of all components."))
    area_mm2: float | None = field(
        metadata=about("Of all instances, estimated; null for what is off the chip, and what has none.")
    )


def component_costs(
    machine: Machine, mapped: Iterable[tuple[Machine, Cost]], streamed_pj: float, all_cycles: int
) -> tuple[ComponentCost, ...]:
    """Units, then the levels from the inside out, other operators, and static power over all cycles.

    `mapped` are costs with the part of the machine that each is on, `streamed_pj` is what operators that are
    not mapped take.
    """
    energy_pj: dict[str, float] = {}
    for part, cost in mapped:
        unit = multipliers(part).name
        energy_pj[unit] = energy_pj.get(unit, 0.0) + cost.mac_energy_pj
        for level in cost.levels:
            own_pj = sum(tensor.energy_pj for tensor in level.tensors.values())
            energy_pj[level.level] = energy_pj.get(level.level, 0.0) + own_pj
    if streamed_pj:
        energy_pj["other operators"] = streamed_pj
    if machine.static_power_w and machine.clock_hz:
        energy_pj["static"] = machine.static_power_w * all_cycles / machine.clock_hz * 1e12
    places = [level.name for level in machine.levels]
    in_order = sorted(energy_pj, key=lambda name: places.index(name) if name in places else len(places))
    units = [name for name in in_order if name not in (*places, "other operators", "static")]
    listed = [*units, *(name for name in in_order if name not in units)]
    areas = {component.name: component.area_mm2 for component in components_of(machine)}
    total_pj = sum(energy_pj.values())
    return tuple(
        ComponentCost(name, energy_pj[name], energy_pj[name] / total_pj if total_pj else 0.0, areas.get(name))
        for name in listed
    )


def component_table(costs: Sequence[ComponentCost], machine: Machine) -> Table:
    """Components for people."""
    nm = machine.technology_nm or USUAL_NM
    rows = tuple(
        (
            cost.name,
            f"{cost.energy_pj / 1e6:,.2f} µJ",
            f"{100 * cost.share:.1f} %",
            "-" if cost.area_mm2 is None else f"{cost.area_mm2:,.4f} mm²",
        )
        for cost in costs
    )
    return Table(("component", "energy", "share", f"area at {nm:g} nm"), rows, "by component", (1, 2, 3))
