"""What `tw.map` is asked: the fields are the flags of `tilewright map`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tilewright.api.machine_request import MachineRequest, machine_metadata
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
    machine: Machine | str | Path = field(
        default=DEFAULT_MACHINE,
        metadata=machine_metadata(
            "A machine: a name from `tilewright targets`, a YAML file, or an architecture of Timeloop."
        ),
    )
    machine_files: tuple[Path, ...] = field(
        default=(),
        metadata=asked(
            "More files of a Timeloop architecture: constraints or a mapping (what bypasses a memory), "
            "an ERT (energies). Repeatable.",
            "--with",
            typed=list[Path],
            metavar="FILE",
        ),
    )
    mapper: str = field(
        default="exact",
        metadata=asked(
            "How to search.", "--mapper", panel=PLANS, typed=str, family="mapping", has_options=True
        ),
    )
    budget: Budget | str | None = field(
        default=None,
        metadata=asked(
            "For each layer: a time, 10s if left out; for the mappers hybrid and random also a number of "
            "mappings, such as 5000trials.",
            "--budget",
            panel=PLANS,
            typed=str | None,
        ),
    )
    seed: int | None = None
    evaluate: Path | tuple[Case, ...] | None = field(
        default=None,
        metadata=asked(
            "Instead of searching, evaluate given mappings: a JSON file of cases, or a Timeloop mapping "
            "for a problem LAYER.",
            "--evaluate",
            panel=PLANS,
            typed=Path | None,
        ),
    )
    export_timeloop: Path | None = field(
        default=None,
        metadata=asked(
            "Also write arch.yaml, problem.yaml and map.yaml for timeloop-model; several layers get a "
            "folder each.",
            "--export-timeloop",
            panel=FILES,
            typed=Path | None,
            metavar="DIR",
        ),
    )
    constraints: tuple[object, ...] = field(
        default=(),
        metadata=asked(
            "What every mapping must satisfy: weight-stationary, output-stationary@GlobalBuffer, "
            "row-stationary@GlobalBuffer, DRAM.spatial.C=8, DRAM.spatial=C,K, GlobalBuffer.tile.P=14, "
            "DRAM.order=K,C,*, DRAM.without=R. Repeatable; only for the mapper exact.",
            "--constrain",
            panel=PLANS,
            typed=list[str],
            metavar="TEXT",
        ),
    )
    ignore_constraints: bool = field(
        default=False,
        metadata=asked(
            "Ignore constraints on loops in Timeloop's files; otherwise those that the mapper cannot keep "
            "are refused.",
            "--ignore-constraints",
            panel=PLANS,
            typed=bool,
            is_expert=True,
        ),
    )
    link_transfers: bool = field(
        default=False,
        metadata=asked(
            "Whether neighbouring instances of an array may pass words to each other.",
            "--link-transfers/--no-link-transfers",
            panel=PLANS,
            typed=bool,
            is_expert=True,
        ),
    )
    skips_pixels: bool = field(
        default=False,
        metadata=asked(
            "Do not count pixels that a stride jumps over (Timeloop counts them).",
            "--skip-pixels",
            panel=PLANS,
            typed=bool,
            is_expert=True,
        ),
    )
    double_buffered: bool = field(
        default=False,
        metadata=asked(
            "Half of every buffer holds the tile in use, half the next one.",
            "--double-buffered",
            panel=PLANS,
            typed=bool,
            is_expert=True,
        ),
    )
    elides_first_fills: bool = field(
        default=False,
        metadata=asked(
            "Like Timeloop 4, count no fill of an output to which nothing has been added yet.",
            "--elide-first-fills",
            panel=PLANS,
            typed=bool,
            is_expert=True,
        ),
    )
    multicasts_per_axis: bool = field(
        default=False,
        metadata=asked(
            "Let one access serve instances along one axis of an array alone, as Timeloop 4 counts meshes.",
            "--multicast-per-axis",
            panel=PLANS,
            typed=bool,
            is_expert=True,
        ),
    )
    noc: bool = field(
        default=False,
        metadata=asked(
            "Also simulate the mappings on the machine's network, cycle by cycle.",
            "--noc",
            panel=PLANS,
            typed=bool,
        ),
    )
    verify: bool = field(
        default=False,
        metadata=asked(
            "Also check mappings that are only compared, or given; answers are always checked.",
            "--verify",
            panel=PLANS,
            typed=bool,
        ),
    )
    sweep: tuple[str, ...] = field(
        default=(),
        metadata=asked(
            "Map onto variants of the machine: levels.GlobalBuffer.capacity_bytes=64KiB,128KiB. Repeatable; "
            "every combination is mapped. Every layer counts alike in means.",
            "--sweep",
            panel=PLANS,
            typed=list[str],
        ),
    )
    workers: str | None = field(
        default=None,
        metadata=asked(
            "With --sweep: how many processes map, or a Ray cluster: ray, or ray://HOST:10001.",
            "--workers",
            panel=PLANS,
            typed=str | None,
            metavar="N|ray",
        ),
    )
    journal: Path | None = field(
        default=None,
        metadata=asked(
            "With --sweep: append every answer to a file of JSON lines; answers that it already holds are "
            "not searched again.",
            "--journal",
            panel=FILES,
            typed=Path | None,
            metavar="FILE",
        ),
    )
    plot: Path | None = field(
        default=None,
        metadata=asked(
            "Draw the mappings as an HTML page; with --sweep also latency, energy, area and their Pareto "
            "front.",
            "--plot",
            "--report",
            panel=FILES,
            typed=Path | None,
            metavar="FILE",
        ),
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
