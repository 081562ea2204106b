"""Names of the kernels of the zoo's networks on each instruction set, at each accuracy: has text changed?

    python -m benchmarks kernel_symbols before.json --networks resnet50,bert_tiny
    python -m benchmarks kernel_symbols after.json --networks resnet50,bert_tiny --against before.json

A kernel's symbol is a digest of its text, so equal lists are equal code. Models are planned and their kernels
generated as text, nothing is compiled or run; `NAME:int8` is a network quantised to bytes. `--neighbours`
also makes the kernels of every plan one decision away. With `--against`, prints what differs and ends
with 1.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import onnx
from tests.support.processors import machine_with, on_machine
from tests.support.quantize import quantize

from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Accuracy, Options
from tilewright.targets.cpu.isa import isa_of
from tilewright.targets.cpu.kernel import Declined, Kernel, Packed
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredPartition
from tilewright.targets.cpu.product.select import lower_product, product_neighbours
from tilewright.targets.cpu.products import Product

ISAS = ("avx512+amx", "avx512", "avx2", "neon")


def built(name: str) -> onnx.ModelProto:
    """A network of the zoo, quantised if its name ends so."""
    network, _, form = name.partition(":")
    model = zoo.build(network)
    return quantize(model, zoo.example_inputs(model, 0)) if form == "int8" else model


def facts(kernel: Kernel) -> str:
    """What is known of a kernel beside its text, which its symbol stands for."""
    args = [
        f"{a.arrangement} {a.size_bytes}" if isinstance(a, Packed) else f"{a.kind} {a.dtype} {a.shape}"
        for a in kernel.args
    ]
    others = (kernel.template, kernel.num_chunks, kernel.scratch_bytes, kernel.estimate_cycles, kernel.notes)
    digest = hashlib.sha256(f"{others} {args} {kernel.macs} {kernel.signature}".encode()).hexdigest()[:8]
    return f"{kernel.symbol} {digest}"


def lines(lowered: LoweredPartition) -> Iterator[str]:
    """The kernels of a model in order, and those that they call."""
    for step in (step for steps in lowered.work for step in steps):
        if isinstance(step, KernelLaunch):
            yield from map(facts, step.kernel.all_kernels())
        else:
            yield f"host {step.node.op_type}"


def neighbours(signature: str, product: Product) -> Iterator[str]:
    """A product's kernels by the estimates' plan and every one a decision away."""
    for choice in product_neighbours(product.nest, product.context):
        kernels = lower_product(product.nest, product.context, {signature: choice})
        made = kernels.reason if isinstance(kernels, Declined) else kernels[-1].symbol
        yield f"{signature[:8]} {choice} {made}"


def record(
    names: list[str], accuracies: list[Accuracy], isas: list[str], with_neighbours: bool
) -> dict[str, list[str]]:
    """Lines of each network, instruction set and accuracy."""
    found: dict[str, list[str]] = {}
    for name in names:
        model = built(name)
        for isa_name in isas:
            machine = machine_with(isa_name)
            for accuracy in accuracies:
                options = Options(no_cache=True, threads=2, accuracy=accuracy)
                with on_machine(machine):
                    program = plan(load_onnx(model), options).program
                lowered = lower_partition(program.partition, isa_of(machine), accuracy=accuracy)
                key = f"{name} {isa_name} {accuracy}"
                found[key] = list(lines(lowered))
                if with_neighbours:
                    for signature, product in lowered.products.items():
                        found[key] += neighbours(signature, product)
                print(f"{key}: {len(found[key])}", file=sys.stderr, flush=True)
    return found


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--networks", default=",".join(zoo.NETWORKS))
    parser.add_argument("--isas", default=",".join(ISAS))
    parser.add_argument("--accuracies", default=",".join(get_args(Accuracy)))
    parser.add_argument("--neighbours", action="store_true")
    parser.add_argument("--against", type=Path)


def main(asked: Namespace) -> int:
    """Record, and compare if asked to."""
    found = record(
        asked.networks.split(","), asked.accuracies.split(","), asked.isas.split(","), asked.neighbours
    )
    asked.output.write_text(json.dumps(found, indent=0))
    if asked.against is None:
        return 0
    before = json.loads(asked.against.read_text())
    changed = [key for key, listed in found.items() if before.get(key) != listed]
    for key in changed:
        old, new = before.get(key, []), found[key]
        differs = [f"  - {o}\n  + {n}" for o, n in zip(old, new, strict=False) if o != n]
        print(f"{key}: {len(old)} before, {len(new)} now, {len(differs)} differ\n" + "\n".join(differs[:3]))
    print(f"{len(changed)} of {len(found)} lists differ, {sum(map(len, found.values()))} kernels compared")
    return bool(changed)
