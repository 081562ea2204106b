"""What learned cost models are worth: errors on families that training never saw, beside the estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from tilewright.cost.learned.model import Quantity
from tilewright.cost.learned.training import Effort, Method
from tilewright.errors import UsageError
from tilewright.learning.collect import Collection, SampledNetwork, machine_of
from tilewright.learning.table import (
    ESTIMATE,
    ROW_HEADS,
    AccuracyTable,
    held_out_by_family,
    pretrained_without,
    tables_of,
)
from tilewright.reproduce.base import Basis, Exhibit, Figure, Update
from tilewright.reproduce.base import Effort as Share
from tilewright.target_ref import CPU, TargetRef

MACHINES = ("jetson-nano", "a310", "zcu102{dtype=int8}")
NETWORKS = (
    *(
        "squeezenet1_1",
        "bert_tiny",
        "resnet18",
        "mobilenet_v2",
        "yolov4_tiny",
        "convnext_tiny",
        "ios_squeezenet",
    ),
    *("dlrm_s", "shufflenet_v2_x1_0", "minilm_l6", "googlenet", "yolox_nano", "squeezenet1_0"),
)
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
HERE = "this processor"


def exhibits(share: Share, update: Update) -> tuple[Exhibit, ...]:
    """One table of methods at a tenth measured, one of errors against the share that is measured."""
    try:
        return tuple(_exhibits(share, update))
    except UsageError as error:
        said = f"Not made here: {error}"
        return (
            Exhibit("Algorithm 1", "costs learned from few measurements", said, basis=Basis.NOT_REPRODUCED),
        )


def _exhibits(share: Share, update: Update) -> Iterator[Exhibit]:
    tables = dict(_tables(NETWORKS[: max(2, ceil(share.share * len(NETWORKS)))], update))
    rows: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for (machine, quantity), table in tables.items():
        update(f"{quantity} on {machine} learned", 0, 1)
        effort = Effort()
        outcomes = held_out_by_family(table, effort)
        rows += [
            outcome.row(machine, quantity, effort.share, name)
            for name, outcome in outcomes.items()
            if outcome.true
        ]
        if outcomes[ESTIMATE].true:
            figures.append(Figure(f"{machine}: MAPE of {quantity}, trees", outcomes["trees"].mape, None))
    said = (
        "Operators and fused groups of the zoo; a tenth of them measured, half by Algorithm 1's random seed, "
        "half in its rounds. Errors are of families that training never saw, without operators that they "
        f"share with others. {ESTIMATE} is the target's own model: the templates' on this processor, the "
        "roofline of the description where kernels are simulated. Energies are model:<machine>."
    )
    yield Exhibit(
        "Algorithm 1",
        "costs learned from a tenth of the operators",
        said,
        tuple(figures),
        "",
        ROW_HEADS,
        tuple(rows),
        basis=Basis.SIMULATED,
    )
    method: Method = "trees"
    curve: list[tuple[str, ...]] = []
    for (machine, quantity), table in tables.items():
        if quantity == "time":
            for part in SHARES:
                update(f"{machine} by {part:.0%} of its operators", 0, 1)
                outcome = held_out_by_family(table, Effort(share=part), (method,))[method]
                if outcome.true:
                    curve.append(outcome.row(machine, quantity, part, method))
    yield Exhibit(
        "Algorithm 1, curve",
        "errors against the share that is measured",
        "Trees, of the same families that training never saw, the more operators of the others are measured.",
        (),
        "",
        ROW_HEADS,
        tuple(curve),
        basis=Basis.SIMULATED,
    )
    yield _pretraining({m: table for (m, quantity), table in tables.items() if quantity == "time"}, update)


def _pretraining(tables: Mapping[str, AccuracyTable], update: Update) -> Exhibit:
    """Each machine, with and without what all kernels of the simulated others teach."""
    rows: list[tuple[str, ...]] = []
    for machine, table in tables.items():
        others = [t for m, t in tables.items() if m not in (machine, HERE)]
        before = pretrained_without(others)
        for part in SHARES[:3]:
            update(f"{machine}, pre-trained, by {part:.0%}", 0, 1)
            alone = held_out_by_family(table, Effort(share=part), ("trees",))["trees"]
            if alone.true:
                adapted = held_out_by_family(table, Effort(share=part), ("trees",), before)["trees"]
                rows.append(alone.row(machine, "time", part, "trees"))
                rows.append(adapted.row(machine, "time", part, "trees, pre-trained"))
    said = (
        "Trees that begin with what all kernels of the other simulated machines teach, without the family "
        "that is held out, and learn what is left."
    )
    return Exhibit(
        "Algorithm 1, pre-trained",
        "adapting to another machine",
        said,
        (),
        "",
        ROW_HEADS,
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def _tables(
    networks: tuple[str, ...], update: Update
) -> Iterator[tuple[tuple[str, Quantity], AccuracyTable]]:
    from tilewright import zoo
    from tilewright.frontend.onnx import load_onnx
    from tilewright.zoo.catalog import NETWORKS as CATALOG

    known = [
        SampledNetwork(name, CATALOG[name].family, name, load_onnx(zoo.build(name))) for name in networks
    ]
    for target in (CPU, *map(TargetRef.parse, MACHINES)):
        collection = Collection(target, 1)
        collection.collect(known, update)
        _, facts = machine_of(target)
        machine = HERE if target.is_cpu else target.name
        for quantity, table in tables_of(collection.samples, facts, is_measured=target.is_cpu).items():
            yield (machine, quantity), table
