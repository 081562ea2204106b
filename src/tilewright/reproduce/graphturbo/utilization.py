"""How busy units are in each stage of a network, of which instances of several may alternate.

A stage has the time from the end of what was finished before to the end of its steps; what units compute in
that time counts, of whichever step it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.targets.npu.simulate import Simulation

UNITS = ("MME", "VME")
_OTHERS = "others"
_STAGE = re.compile(r"\blayer(\d+)\.")


def busy_by_stage(simulation: Simulation) -> dict[str, Mapping[str, float]]:
    """The share of each stage's time in which units compute; empty where operators name no stages."""
    matches = [_STAGE.search(step.name) for step in simulation.steps]
    if not any(matches):
        return {}
    stages = [f"stage {match[1]}" if match else _OTHERS for match in matches]
    windows = list(_windows(simulation, stages))
    seconds = dict.fromkeys(stages, 0.0)
    for start_s, end_s, stage in windows:
        seconds[stage] += end_s - start_s
    busy = {stage: dict.fromkeys(UNITS, 0.0) for stage in seconds}
    for unit in UNITS:
        runs = sorted((r.start_s, r.end_s) for r in simulation.runs if r.unit == unit and r.what == "compute")
        place = 0
        for run_start_s, run_end_s in runs:
            while windows[place][1] <= run_start_s:
                place += 1
            for start_s, end_s, stage in islice(windows, place, None):
                if start_s >= run_end_s:
                    break
                busy[stage][unit] += min(run_end_s, end_s) - max(run_start_s, start_s)
    return {
        stage: {unit: busy[stage][unit] / seconds[stage] for unit in UNITS}
        for stage in sorted(seconds)
        if stage != _OTHERS and seconds[stage]
    }


def _windows(simulation: Simulation, stages: Sequence[str]) -> Iterator[tuple[float, float, str]]:
    """From when to when each stage has the time."""
    ends = [0.0] * len(stages)
    for run in simulation.runs:
        ends[run.step] = max(ends[run.step], run.end_s)
    now = 0.0
    for end_s, stage in zip(ends, stages, strict=True):
        if end_s > now:
            yield now, end_s, stage
            now = end_s
