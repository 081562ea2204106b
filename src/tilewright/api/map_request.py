"""What `tw.map` is asked: the fields are the flags of `tilewright map`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tilewright.api.machine_request import MachineRequest
from tilewright.arguments import argument
from tilewright.cost.options import CostOptions
from tilewright.hardware.machine import Machine
from tilewright.mapping.cases import Case
from tilewright.planning import Budget
from tilewright.requests import FILES, PLANS, asked

DEFAULT_MACHINE = "simba-cosa-repo"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRequest(MachineRequest):
    """What `tw.map` is asked: see each field's help, which the flags of `tilewright map` show.

    What is written on the command line may be given here, too; besides, `work` may hold problems and models,
    `machine` be a `Machine`, `evaluate` cases, and `constraints` the classes of
    `tilewright.mapping.constraints`. `seed` is for mappers that draw.
    """

    WITHOUT_EFFECT: ClassVar[Mapping[str, Sequence[str]]] = {
        "evaluate": (
            "mapper",
            "objective",
            "budget",
            "seed",
            "shapes",
            "sweep",
            "plot",
            "workers",
            "journal",
            "constraints",
        ),
        "sweep": ("export_timeloop", "noc", "verify"),
    }

    work: tuple[object, ...] = ()
    machine: Machine | str | Path = asked(
        DEFAULT_MACHINE,
        "A machine: a name from `tilewright targets`, a YAML file, or an architecture of Timeloop.",
        "--target",
        "-t",
        family="targets",
    )
    machine_files: tuple[Path, ...] = asked(
        (),
        "More files of a Timeloop architecture: constraints or a mapping (what bypasses a memory), "
        "an ERT (energies). Repeatable.",
        "--with",
        metavar="FILE",
    )
    mapper: str = asked(
        "exact", "How to search.", "--mapper", panel=PLANS, family="mapping", has_options=True
    )
    budget: Budget | str | None = asked(
        None,
        "For each layer: a time, 10s if left out; for the mappers hybrid and random also a number of "
        "mappings, such as 5000trials.",
        "--budget",
        panel=PLANS,
    )
    seed: int | None = None
    evaluate: Path | tuple[Case, ...] | None = asked(
        None,
        "Instead of searching, evaluate given mappings: a JSON file of cases, or a Timeloop mapping "
        "for a problem LAYER.",
        "--evaluate",
        panel=PLANS,
    )
    export_timeloop: Path | None = asked(
        None,
        "Also write arch.yaml, problem.yaml and map.yaml for timeloop-model; several layers get a "
        "folder each.",
        "--export-timeloop",
        panel=FILES,
        metavar="DIR",
    )
    constraints: tuple[object, ...] = asked(
        (),
        "What every mapping must satisfy: weight-stationary, output-stationary@GlobalBuffer, "
        "row-stationary@GlobalBuffer, DRAM.spatial.C=8, DRAM.spatial=C,K, GlobalBuffer.tile.P=14, "
        "DRAM.order=K,C,*, DRAM.without=R. Repeatable; only for the mapper exact.",
        "--constrain",
        panel=PLANS,
        metavar="TEXT",
    )
    ignore_constraints: bool = asked(
        False,
        "Ignore constraints on loops in Timeloop's files; otherwise those that the mapper cannot keep "
        "are refused.",
        "--ignore-constraints",
        panel=PLANS,
        is_expert=True,
    )
    density: Mapping[str, float] | str | None = asked(
        None,
        "Share of elements that are not zero, for all layers: weight=0.5,input=0.6; with what the machine's "
        "file says of formats and zeros.",
        "--density",
        panel=PLANS,
        metavar="TEXT",
    )
    link_transfers: bool = asked(
        False,
        "Whether neighbouring instances of an array may pass words to each other.",
        "--link-transfers/--no-link-transfers",
        panel=PLANS,
        is_expert=True,
    )
    skips_pixels: bool = asked(
        False,
        "Do not count pixels that a stride jumps over (Timeloop counts them).",
        "--skip-pixels",
        panel=PLANS,
        is_expert=True,
    )
    double_buffered: bool = asked(
        False,
        "Half of every buffer holds the tile in use, half the next one.",
        "--double-buffered",
        panel=PLANS,
        is_expert=True,
    )
    elides_first_fills: bool = asked(
        False,
        "Like Timeloop 4, count no fill of an output to which nothing has been added yet.",
        "--elide-first-fills",
        panel=PLANS,
        is_expert=True,
    )
    multicasts_per_axis: bool = asked(
        False,
        "Let one access serve instances along one axis of an array alone, as Timeloop 4 counts meshes.",
        "--multicast-per-axis",
        panel=PLANS,
        is_expert=True,
    )
    noc: bool = asked(
        False, "Also simulate the mappings on the machine's network, cycle by cycle.", "--noc", panel=PLANS
    )
    verify: bool = asked(
        False,
        "Also check mappings that are only compared, or given; answers are always checked.",
        "--verify",
        panel=PLANS,
    )
    sweep: tuple[str, ...] = asked(
        (),
        "Map onto variants of the machine: levels.GlobalBuffer.capacity_bytes=64KiB,128KiB. Repeatable; "
        "every combination is mapped. Every layer counts alike in means.",
        "--sweep",
        panel=PLANS,
    )
    workers: str | None = asked(
        None,
        "With --sweep: how many processes map, or a Ray cluster: ray, or ray://HOST:10001.",
        "--workers",
        panel=PLANS,
        metavar="N|ray",
    )
    journal: Path | None = asked(
        None,
        "With --sweep: append every answer to a file of JSON lines; answers that it already holds are "
        "not searched again.",
        "--journal",
        panel=FILES,
        metavar="FILE",
    )
    plot: Path | None = asked(
        None,
        "Draw the mappings as an HTML page; with --sweep also latency, energy, area and their Pareto front.",
        "--plot",
        "--report",
        panel=FILES,
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        MachineRequest.__post_init__(self)
        work = (argument("work", w, Path) if isinstance(w, os.PathLike) else w for w in self.work)
        object.__setattr__(self, "work", tuple(work))
        self._check_workers(self.workers, self.journal, "--sweep", is_there=bool(self.sweep))

    @property
    def cost_options(self) -> CostOptions:
        """The options of the cost model."""
        return CostOptions(
            self.link_transfers,
            self.skips_pixels,
            self.double_buffered,
            self.elides_first_fills,
            self.multicasts_per_axis,
        )
