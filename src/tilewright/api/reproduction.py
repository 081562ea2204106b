"""`tw.reproduce`: a paper's tables and figures by our code, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.arguments import checked
from tilewright.errors import UsageError
from tilewright.files import require_writable, write_output
from tilewright.hardware.probe import affinity_cores
from tilewright.planning import Budget
from tilewright.progress import Progress
from tilewright.reproduce import REPRODUCTIONS
from tilewright.reproduce.base import Effort, ReproducedPaper, Reproduction, report_page, with_missing
from tilewright.reproduce.kept import Kept
from tilewright.target_ref import TargetRef


@checked
def reproduce_paper(
    paper: str,
    output: str | Path | None = None,
    *,
    share: float = 1.0,
    samples: int = 4000,
    processes: int | None = None,
    resume: str | Path | None = None,
    only: Sequence[str] = (),
    budget: str | None = None,
    device: TargetRef | str | None = None,
    progress: Progress | None = None,
) -> ReproducedPaper:
    """Make a paper's tables and figures again, and write them with the paper's numbers into one HTML file.

    `share` is that of the layers, 0.1 for a first look; `samples` are random mappings where a distribution is
    shown; `processes` is how many work, by default one for each core. `resume` is
    a file of JSON lines that keeps finished parts: a run that was cut short goes on from there. `only` names
    exhibits, such as `Figure 10`; `budget` is the time for what they tune and race: what does not fit is left
    out. `device`, such as `cuda`, is measured beside the processor; for
    `cuda{device=emulated}` plans are estimated and counted.

    Raises:
        UsageError: an unknown paper or exhibit, a share, number or time that makes no sense, or a file of
            something else, or one that cannot be written; a device that nothing is measured on.
        DeviceError: there is no such device; says what to do.
    """
    reproduction = REPRODUCTIONS.get(paper)
    if resume is not None and not reproduction.resumes:
        raise UsageError(f"reproduce: {paper} keeps no finished parts; leave out the file to resume from.")
    if not reproduction.exhibits and (only or budget is not None):
        raise UsageError(f"reproduce: {paper} makes all its exhibits, in no given time; leave that out.")
    unknown = [name for name in only if name not in reproduction.exhibits]
    if unknown:
        known = ", ".join(reproduction.exhibits)
        raise UsageError(f"reproduce: {paper} has no exhibit {unknown[0]!r}: expected {known}.")
    budget_s = None if budget is None else Budget.parse(budget).deadline_s
    if budget is not None and budget_s is None:
        raise UsageError(f"reproduce: budget {budget!r}: expected a time, such as 5m.")
    target = None if device is None else _measurable(paper, reproduction, TargetRef.parse(device))
    path = Path(output or f"{paper}.html")
    require_writable(path)
    num_processes = max(1, affinity_cores() if processes is None else processes)
    kept = Kept(None if resume is None else Path(resume))
    effort = Effort(share, samples, num_processes, kept, tuple(only), budget_s, target)
    made = reproduction.run(effort, progress or (lambda *_: None))
    exhibits = with_missing(reproduction.printed, made, effort.only)
    layers = "all layers" if share == 1 else f"one layer in {round(1 / share)}"
    is_gpu, is_emulated = target is not None, target is not None and target.is_emulated
    where = "this processor and GPU" if is_gpu and not is_emulated else "this processor"
    estimated = ", estimated for a GPU that is not there" if is_emulated else ""
    conditions = (
        f"{reproduction.title}. Every exhibit says what our figures are: measured on {where}, "
        f"simulated on a described machine{estimated}, or counted exactly; {layers}."
    )
    write_output(path, report_page(f"Reproducing {paper}", exhibits, conditions).encode())
    return ReproducedPaper(paper, path, exhibits)


def _measurable(paper: str, reproduction: Reproduction, device: TargetRef) -> TargetRef:
    """A GPU that the paper's plans can be measured on, which is there, or the emulated one."""
    if not reproduction.measures_devices:
        raise UsageError(f"reproduce: {paper} compares nothing on a GPU; leave out {device}.")
    if device.name != "cuda":
        raise UsageError(f"reproduce: device {device}: expected cuda, perhaps with options.")
    from tilewright.targets import find_target
    from tilewright.targets.cuda.driver import gpu_here

    target = find_target(device)  # which knows its options
    if not device.is_emulated:
        gpu_here(getattr(target, "ordinal", 0))
    return device
