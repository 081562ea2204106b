"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tilewright.reproduce.base import Effort, Exhibit, Reproduction, Update
from tilewright.reproduce.graphturbo import exhibits
from tilewright.reproduce.graphturbo.claims import claims_of_the_text
from tilewright.reproduce.graphturbo.gpu import GPU, TAILOR, GpuTimes, gpu_times
from tilewright.reproduce.graphturbo.measured import Measured, Row
from tilewright.reproduce.graphturbo.paper import (
    FIGURE_16,
    NETWORKS,
    PRINTED,
    TABLE_1,
    TABLE_5,
    PublishedNetwork,
)
from tilewright.reproduce.graphturbo.runs import (
    BREADTH_FIRST,
    CALIBRATION,
    DEPTH_FIRST,
    LARGEST,
    MASKED,
    PLANNED_FOR_ALL,
    GraphTurboJob,
    GraphTurboOutcome,
    each,
    outcomes,
)
from tilewright.reproduce.in_turns import Plans
from tilewright.reproduce.on_device import exhibit_on_device, planned_on

_TVM = ("tvm", "tvm-overlapped")
_STEPS = ("astitch", "variant-1", "variant-2", "variant-3")
_OURS = (*_STEPS, *(f"{name}-overlapped" for name in _STEPS), "variant-4", "best", MASKED)
_LAYERS, _GRAPHTURBO = "layer by layer", "GraphTurbo"
_ON_DEVICE: Plans = {
    _LAYERS: {"partition": "layerwise", "schedule": "sequential"},
    _GRAPHTURBO: {"partition": "graphturbo", "schedule": "sequential"},
    "GraphTurbo, groups side by side": {"partition": "graphturbo", "schedule": "greedy"},
}
_ALLOCATED = (1.0, 0.875, 0.75, 0.625, 0.5)


class GraphTurbo(Reproduction):
    """The reproduction."""

    title = "Effectively Scheduling Computational Graphs of Deep Neural Networks (GraphTurbo, OSDI 2023)"
    measures_devices = True
    printed = PRINTED

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        chosen = NETWORKS[:: max(1, round(1 / effort.share))]
        jobs = _jobs(chosen)
        found: dict[Hashable, dict[str, GraphTurboOutcome]] = {}
        for number, (key, outcome) in enumerate(
            zip(jobs, each(outcomes, tuple(jobs.values()), effort.num_processes), strict=True)
        ):
            update(f"{jobs[key].network} with {jobs[key].batch} samples", number, len(jobs) + 1)
            found[key] = outcome
        update(f"{GPU} with {', '.join(map(str, TABLE_5))} images", len(jobs), len(jobs) + 1)
        gpu = dict(zip(TABLE_5, each(gpu_times, tuple(TABLE_5), effort.num_processes), strict=True))
        measured = _measured(chosen, found, gpu)
        on_device = _on_device(chosen, effort, update)
        return (
            exhibits.choices(measured),
            exhibits.table_1(measured),
            exhibits.table_2(measured),
            exhibits.figure_14(measured),
            exhibits.figure_15(measured),
            exhibits.table_3(measured),
            exhibits.shared_buffers(measured),
            exhibits.figure_16(measured),
            exhibits.figure_17(measured),
            exhibits.table_4(measured),
            exhibits.table_5(measured),
            *on_device,
            claims_of_the_text(measured),
        )


def _on_device(chosen: Sequence[PublishedNetwork], effort: Effort, update: Update) -> tuple[Exhibit, ...]:
    """The network of table 5, and those of table 2, on the GPU that was asked for."""
    if effort.device is None:
        return ()
    models = {f"ResNet18-Tailor, {n} images": (TAILOR, {"batch": n}) for n in TABLE_5}
    models |= {n.label: (n.zoo_name, {**n.size, "batch": n.batch}) for n in chosen}
    found = {}
    for number, (name, (network, size)) in enumerate(models.items()):
        update(f"{name} on {effort.device}", number, len(models))
        found[name] = planned_on(network, size, effort.device, _ON_DEVICE)
    said = (
        "Kernels are float32, and a subgraph runs whole, without instances: a GPU's kernels are launched "
        "one by one. Products are not fused with each other as CUTLASS does it, so that the paper's gain by "
        "pairs is not to be seen here."
    )
    return (exhibit_on_device("Table 5 on a GPU", said, found, _GRAPHTURBO, _LAYERS),)


def _jobs(chosen: Sequence[PublishedNetwork]) -> Mapping[Hashable, GraphTurboJob]:
    """What is run, by what it is for; what takes longest first."""
    jobs: dict[Hashable, GraphTurboJob] = {}
    for network in chosen:
        jobs["ours", network.label] = GraphTurboJob(network.zoo_name, network.size, network.batch, _OURS)
    for network in chosen:
        jobs["tvm", network.label] = GraphTurboJob(network.zoo_name, network.size, network.tvm_batch, _TVM)
    name, size, batches = TABLE_1
    for batch in batches:
        jobs["batch", batch] = GraphTurboJob(name, size, batch, (*_TVM, "variant-1", "graphturbo"))
    for title, name, size, dtype, counts in FIGURE_16:
        for batch in counts:
            jobs["units", title, batch] = GraphTurboJob(name, size, batch, ("tvm", "graphturbo"), dtype)
    first, third = NETWORKS[0], NETWORKS[min(2, len(NETWORKS) - 1)]
    jobs["choices"] = GraphTurboJob(first.zoo_name, first.size, first.batch, tuple(CALIBRATION))
    jobs["orders"] = GraphTurboJob(
        first.zoo_name, first.size, first.batch, (DEPTH_FIRST, BREADTH_FIRST, LARGEST)
    )
    for share in _ALLOCATED:
        jobs["allocated", share] = GraphTurboJob(
            third.zoo_name, third.size, third.batch, (PLANNED_FOR_ALL,), allocated=share
        )
    return jobs


def _measured(
    chosen: Sequence[PublishedNetwork],
    found: Mapping[Hashable, Mapping[str, GraphTurboOutcome]],
    gpu: Mapping[int, Mapping[str, GpuTimes]],
) -> Measured:
    batches = TABLE_1[2]
    return Measured(
        tuple(Row(n, found["tvm", n.label], found["ours", n.label]) for n in chosen),
        {batch: found["batch", batch] for batch in batches},
        {title: {n: found["units", title, n] for n in counts} for title, _, _, _, counts in FIGURE_16},
        found["orders"],
        found["choices"],
        {share: found["allocated", share][PLANNED_FOR_ALL] for share in _ALLOCATED},
        gpu,
    )
