"""What learned cost models are worth: errors on families that training never saw, beside the estimate."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilewright.cost.features import MachineFacts
from tilewright.cost.learned.model import Quantity
from tilewright.cost.learned.training import Effort, Method
from tilewright.errors import UsageError
from tilewright.reproduce.base import Effort as Share
from tilewright.reproduce.base import Exhibit, Figure, Update
from tilewright.reproduce.pcgc.learning import ESTIMATE, Outcome, Table, held_out_by_family
from tilewright.reproduce.pcgc.samples import Samples, measured, simulated

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
LEAST_MEASURED_NS = 500.0
"""Time stamps of this processor resolve some 10 ns."""
_HEADS = (
    "machine",
    "of",
    "measured",
    "method",
    "MAPE",
    "median error",
    "Kendall tau",
    "right to fuse or cut",
)


def exhibits(share: Share, update: Update) -> tuple[Exhibit, ...]:
    """One table of methods at a tenth measured, one of errors against the share that is measured."""
    try:
        return tuple(_exhibits(share, update))
    except UsageError as error:
        said = f"Not made here: {error}"
        return (Exhibit("Algorithm 1", "costs learned from few measurements", said),)


def _exhibits(share: Share, update: Update) -> Iterator[Exhibit]:
    tables = dict(_tables(NETWORKS[: max(2, ceil(share.share * len(NETWORKS)))], update))
    rows: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for (machine, quantity), table in tables.items():
        update(f"{quantity} on {machine} learned", 0, 1)
        outcomes = held_out_by_family(table, Effort())
        rows += [
            _row(machine, quantity, 0.1, name, outcome) for name, outcome in outcomes.items() if outcome.true
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
        _HEADS,
        tuple(rows),
    )
    curve: list[tuple[str, ...]] = []
    method: Method = "trees"
    for (machine, quantity), table in tables.items():
        if quantity == "time":
            for part in SHARES:
                update(f"{machine} by {part:.0%} of its operators", 0, 1)
                outcome = held_out_by_family(table, Effort(share=part), (method,))[method]
                if outcome.true:
                    curve.append(_row(machine, quantity, part, method, outcome))
    yield Exhibit(
        "Algorithm 1, curve", "errors against the share that is measured", "", (), "", _HEADS, tuple(curve)
    )


def _tables(networks: tuple[str, ...], update: Update) -> Iterator[tuple[tuple[str, Quantity], Table]]:
    from tilewright import zoo
    from tilewright.frontend.onnx import load_onnx
    from tilewright.hardware.host import host_machine
    from tilewright.targets import find_target
    from tilewright.zoo.catalog import NETWORKS as CATALOG

    graphs = {name: load_onnx(zoo.build(name)) for name in networks}
    here = Samples()
    for number, (name, graph) in enumerate(graphs.items()):
        update(f"operators of {name} on this processor", number, len(graphs))
        here.extend(measured(name, CATALOG[name].family, graph, (1,))[1])
    yield (
        ("this processor", "time"),
        Table.of(here, MachineFacts.of(host_machine()), "time", LEAST_MEASURED_NS),
    )
    quantities: tuple[Quantity, ...] = ("time", "energy")
    for target in MACHINES:
        there = Samples()
        for number, (name, graph) in enumerate(graphs.items()):
            update(f"operators of {name} on {target}", number, len(graphs))
            there.extend(simulated(name, CATALOG[name].family, graph, target))
        machine = MachineFacts.of(find_target(target).machine)
        for quantity in quantities:
            yield (target.partition("{")[0], quantity), Table.of(there, machine, quantity)


def _row(machine: str, quantity: str, share: float, method: str, outcome: Outcome) -> tuple[str, ...]:
    return (
        machine,
        quantity,
        f"{share:.0%}",
        method,
        f"{100 * outcome.mape:.1f} %",
        f"{100 * outcome.median_error:.1f} %",
        f"{outcome.kendall_tau:.2f}",
        f"{100 * outcome.right_share:.0f} % of {outcome.num_choices}",
    )
