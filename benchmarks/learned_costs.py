"""What learned costs are worth: kernels of the zoo are collected, then families of networks are held out.

    python -m benchmarks learned_costs collect --target cpu --threads 1 --seconds 600 --folder kernels
    python -m benchmarks learned_costs collect --target a310 --folder kernels
    python -m benchmarks learned_costs evaluate --folder kernels --output out.md

`collect` appends to `FOLDER/TARGET-THREADS.jsonl` and goes on where it stopped; on the processor it wants an
otherwise idle machine. `evaluate` prints the tables of docs/pcgc.md from whatever is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.cost.features import identity_of
from tilewright.cost.learned.model import Quantity
from tilewright.cost.learned.training import METHODS, Effort, Method
from tilewright.frontend.onnx import load_onnx
from tilewright.learning.collect import Collection, SampledNetwork, machine_of
from tilewright.learning.samples import SampleFile, Samples
from tilewright.learning.table import (
    ESTIMATE,
    ROW_HEADS,
    AccuracyTable,
    Array,
    ModelOutcome,
    held_out_by_family,
    pretrained_without,
    tables_of,
)
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.zoo.catalog import NETWORKS as CATALOG

NETWORKS = (
    "resnet18", "minilm_l6", "shufflenet_v2_x1_0", "mobilenet_v2", "dlrm_s", "yolov4_tiny", "convnext_tiny",
    "googlenet", "mobilevit_s", "squeezenet1_1", "ios_squeezenet", "bert_tiny", "yolox_nano", "resnet50",
    "efficientnet_b0", "mobilenet_v3_large", "mnasnet1_0", "conformer_s", "densenet121", "yolov5s",
)  # fmt: skip
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)


def collect(arguments: Namespace) -> None:
    """Kernels of the networks, as far as the time goes."""
    started_s = time.monotonic()
    names = arguments.networks.split(",")
    networks = [SampledNetwork(n, CATALOG[n].family, n, load_onnx(zoo.build(n))) for n in names]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = SampleFile(_path(arguments), identity_of(machine_of(arguments.target)[0]))
    left_s = None if arguments.seconds is None else arguments.seconds - (time.monotonic() - started_s)
    collection = Collection(arguments.target, arguments.threads, file, left_s)
    collection.collect(networks, lambda what, done, total: print(f"{done}/{total} {what}", flush=True))
    print(
        f"{len(collection.samples.samples)} kernels, {len(collection.samples.choices)} choices; "
        f"{collection.num_unmeasured} parts left; skipped: {collection.skipped or 'none'}"
    )


def evaluate(arguments: Namespace) -> None:
    """The tables, printed as they come and written."""
    lines = [f"| {' | '.join(ROW_HEADS)} |", "|---" * len(ROW_HEADS) + "|"]
    print("\n".join(lines), flush=True)
    for row in _rows(dict(_tables(arguments)), arguments.share, arguments.seeds):
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
        if arguments.output is not None:
            arguments.output.write_text("\n".join(lines) + "\n")


def _tables(arguments: Namespace) -> Iterator[tuple[tuple[str, Quantity], AccuracyTable]]:
    for path in sorted(arguments.folder.glob("*.jsonl")):
        target, _, threads = path.stem.rpartition("-")
        if arguments.only and target not in arguments.only.split(","):
            continue
        machine, facts = machine_of(target)
        samples = Samples()
        for known in SampleFile(path, identity_of(machine)).known().values():
            samples.extend(known)
        is_measured = find_target(TargetRef.parse(target)).is_measurable
        name = f"{target}, {threads} thread{'s' if threads != '1' else ''}" if is_measured else target
        for quantity, table in tables_of(samples, facts, is_measured=is_measured).items():
            yield (name, quantity), table


def _rows(
    tables: Mapping[tuple[str, Quantity], AccuracyTable], share: float, num_seeds: int
) -> Iterator[tuple[str, ...]]:
    """All methods at one share, the error against the share, and what other machines' kernels bring."""
    for (machine, quantity), table in tables.items():
        outcomes = _held_out(table, share, METHODS, num_seeds)
        yield from (o.row(machine, quantity, share, name) for name, o in outcomes.items() if o.true)
    times = {machine: table for (machine, quantity), table in tables.items() if quantity == "time"}
    for machine, table in times.items():
        others = [t for m, t in times.items() if m != machine and not m.startswith("cpu")]
        before = pretrained_without(others) if others else None
        for part in SHARES:
            alone = _held_out(table, part, ("trees",), num_seeds)["trees"]
            if alone.true:
                yield alone.row(machine, "time", part, "trees")
            if alone.true and before is not None:
                adapted = _held_out(table, part, ("trees",), num_seeds, before)["trees"]
                yield adapted.row(machine, "time", part, "trees, pre-trained")


def _held_out(
    table: AccuracyTable,
    share: float,
    methods: Sequence[Method],
    num_seeds: int,
    pretrained: Callable[[str], Callable[[Array], Array]] | None = None,
) -> Mapping[str, ModelOutcome]:
    """Of all seeds together: which operators are measured is chance, of which one says little."""
    total: dict[str, ModelOutcome] = {}
    for seed in range(num_seeds if share < 1 else 1):
        effort = Effort(share=share, seed=seed)
        for name, outcome in held_out_by_family(table, effort, methods, pretrained).items():
            if name == ESTIMATE and seed:
                continue
            total[name] = total.get(name, ModelOutcome()) + outcome
    return total


def _path(arguments: Namespace) -> Path:
    return Path(arguments.folder / f"{arguments.target}-{arguments.threads}.jsonl")


def options(parser: Parser) -> None:
    """What can be asked."""
    verbs = parser.add_subparsers(required=True)
    collects = verbs.add_parser("collect")
    collects.add_argument("--target", default="cpu")
    collects.add_argument("--threads", type=int, default=1)
    collects.add_argument("--networks", default=",".join(NETWORKS))
    collects.add_argument("--seconds", type=float, help="begin nothing more after so long")
    collects.set_defaults(run=collect)
    evaluates = verbs.add_parser("evaluate")
    evaluates.add_argument("--share", type=float, default=0.1)
    evaluates.add_argument("--seeds", type=int, default=1)
    evaluates.add_argument("--only", default="", help="targets, separated by commas")
    evaluates.add_argument("--output")
    evaluates.set_defaults(run=evaluate)
    for each in (collects, evaluates):
        each.add_argument("--folder", type=Path, default=Path("kernels"))


def main(arguments: Namespace) -> None:
    """Collect or evaluate."""
    arguments.run(arguments)
