"""Networks for tests, benchmarks and demonstrations, built directly as ONNX models with seeded weights.

The architectures are the published ones; the weights are random, scaled so that activations keep their
size through depth. The graphs look like PyTorch's export for inference before any optimisation: batch
normalisation is a node of its own, GELU and layer normalisation are spelled out.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from onnx import ModelProto

from tilewright.errors import UsageError
from tilewright.results import Result
from tilewright.zoo.builder import Builder
from tilewright.zoo.catalog import NETWORKS
from tilewright.zoo.examples import Arrays, array_for, spec_from_model
from tilewright.zoo.network import Settings, Size, ZooNetwork

__all__ = ["BuiltNetwork", "ImageSize", "Networks", "ZooEntry", "build", "entry", "example_inputs", "names"]

ImageSize = int | tuple[int, int]
"""The side of a square image, or width and height, in pixels."""


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """What a network is. `input_shapes` are those of `build(name)`, in graph order."""

    name: str
    family: str
    description: str
    paper: str
    input_shapes: MappingProxyType[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Networks(Result):
    """The networks that can be built."""

    networks: tuple[ZooEntry, ...]


@dataclass(frozen=True, slots=True)
class BuiltNetwork(Result):
    """A network written to a file."""

    name: str
    path: Path
    size_bytes: int
    num_nodes: int


def names() -> tuple[str, ...]:
    """Every network of the zoo, sorted.

    >>> "resnet50" in names()
    True
    """
    return tuple(sorted(NETWORKS))


def entry(name: str) -> ZooEntry:
    """What the zoo says about one network.

    >>> entry("resnet50").input_shapes["input"]
    (1, 3, 224, 224)
    """
    network = _find(name)
    specs = network.inputs(_settings(network, batch=1, image=None, sequence=None))
    shapes = MappingProxyType({spec.name: spec.shape for spec in specs})
    return ZooEntry(network.name, network.family, network.description, network.paper, shapes)


def build(
    name: str, *, batch: int = 1, image: ImageSize | None = None, sequence: int | None = None, seed: int = 0
) -> ModelProto:
    """Build a network: the same arguments give the same bytes, in every process.

    `image` is the side of a square image or its width and height in pixels, `sequence` the number of tokens
    or frames; each only where the network has one. Weights depend on the network's name, the seed and their
    own name only.

    Raises:
        UsageError: an unknown name, or a size that the network does not take.

    >>> model = build("squeezenet1_1", image=64)
    >>> [output.name for output in model.graph.output]
    ['logits']
    >>> example_inputs(build("yolox_nano", image=(96, 64)))["input"].shape
    (1, 3, 64, 96)
    """
    network = _find(name)
    settings = _settings(network, batch=batch, image=image, sequence=sequence)
    builder = Builder(network.name, seed=seed)
    builder.note("zoo.network", network.name)
    specs = network.inputs(settings)
    inputs = tuple(builder.input(spec.name, spec.shape, spec.dtype) for spec in specs)
    for spec in specs:
        builder.note(f"zoo.input.{spec.name}", f"{spec.fill.value}:{spec.limit}")
    network.body(builder, inputs)
    return builder.finish()


def example_inputs(model: ModelProto | str, seed: int = 0) -> Arrays:
    """Plausible input values by name: for a name, of its default shapes; for a model, of the model's shapes.

    A model from elsewhere gets normal values for float inputs and zeros and ones for integers.

    Raises:
        UsageError: an unknown name, or a model with an input whose shape or type gives no example.

    >>> example_inputs("bert_tiny")["input_ids"].shape
    (1, 128)
    """
    if isinstance(model, str):
        network = _find(model)
        specs = network.inputs(_settings(network, batch=1, image=None, sequence=None))
    else:
        specs = spec_from_model(model)
    return {spec.name: array_for(spec, seed) for spec in specs}


def _find(name: str) -> ZooNetwork:
    if name in NETWORKS:
        return NETWORKS[name]
    close = difflib.get_close_matches(name.lower().replace("-", "_"), NETWORKS, n=3, cutoff=0.5)
    hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(names())}."
    raise UsageError(f"The zoo has no network {name!r}. {hint}")


def _settings(network: ZooNetwork, *, batch: int, image: ImageSize | None, sequence: int | None) -> Settings:
    if batch < 1:
        raise UsageError(f"{network.name}: batch {batch} is not a positive number.")
    width, height = image if isinstance(image, tuple) else (image, image)
    return Settings(
        batch,
        _size(network, "image", network.image, height),
        _size(network, "image", network.image, width),
        _size(network, "sequence", network.sequence, sequence),
    )


def _size(network: ZooNetwork, what: str, size: Size | None, asked: int | None) -> int:
    if size is None:
        if asked is not None:
            raise UsageError(f"{network.name} has no {what} size; leave {what} out.")
        return 0
    if asked is None:
        return size.default
    if not size.accepts(asked):
        raise UsageError(f"{network.name}: {what} {asked} does not fit; it takes sizes {size}.")
    return asked
