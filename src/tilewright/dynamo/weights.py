"""The tensors that code was made with, and whether they are what they were."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

NUM_SAMPLES = 16
"""Elements of each weight that are compared in each call, spread evenly; of a smaller weight all."""

_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Elements of one size in bytes, wherever they lie in this process's memory, and what they were."""

    memory: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]
    values: bytes

    @classmethod
    def of(cls, addresses: Sequence[int], size_bytes: int) -> _Sample:
        """What lies at these addresses now. The caller keeps it there."""
        first = min(addresses)
        places = (np.array(addresses, np.int64) - first) // size_bytes
        memory = np.asarray(_Memory(first, int(places.max()) + 1, size_bytes))
        return cls(memory, places, memory.take(places).tobytes())

    def is_same(self) -> bool:
        """Whether the elements are what they were."""
        return self.memory.take(self.places).tobytes() == self.values


class _Memory:
    """Memory from an address on as an array of unsigned numbers, of which few elements may be read."""

    def __init__(self, address: int, count: int, size_bytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": (count,),
            "typestr": f"<u{size_bytes}",
        }


def _samples(tensors: Sequence[Any]) -> tuple[_Sample, ...]:
    addresses: dict[int, list[int]] = {}
    for tensor in tensors:
        size_bytes = min(tensor.element_size(), 8)
        if tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel():
            numbers = np.linspace(0, tensor.numel() - 1, min(NUM_SAMPLES, tensor.numel())).astype(np.int64)
            index = np.unravel_index(numbers, tuple(tensor.shape)) if tensor.dim() else ()
            offsets = sum(
                (i * s for i, s in zip(index, tensor.stride(), strict=True)), np.zeros_like(numbers)
            )
            found = tensor.data_ptr() + offsets * tensor.element_size()
            # An element of complex128 is two numbers.
            found = np.concatenate([found + part for part in range(0, tensor.element_size(), size_bytes)])
            if not (found % size_bytes).any():
                addresses.setdefault(size_bytes, []).extend(found.tolist())
    return tuple(_Sample.of(found, size_bytes) for size_bytes, found in sorted(addresses.items()))


@dataclass(frozen=True, slots=True, eq=False)
class BoundWeights:
    """Weights that became constants of the code.

    TorchDynamo passes some of them to the graph in each call, at `places`; the graph itself holds the others.
    Writing to a tensor counts up its version, and assigning to its `data` moves it, which is seen by its
    address. Writes through its `data` or numpy, as of loaders and moving averages, count nothing, and tensors
    made in inference mode have no version: these are seen by a sample of the elements.
    """

    places: tuple[int, ...]
    passed: tuple[Any, ...]
    tensors: tuple[Any, ...]
    addresses: list[int]
    counted: tuple[Any, ...]
    versions: list[int]
    samples: tuple[_Sample, ...]
    storages: tuple[Any, ...]

    @classmethod
    def of(cls, module: Any, arguments: Sequence[Any], places: tuple[int, ...]) -> BoundWeights:
        """Those of a graph as it is called now."""
        passed = tuple(arguments[i] for i in places)
        tensors = tuple({id(t): t for t in (*passed, *held_tensors(module))}.values())
        counted = tuple(t for t in tensors if not t.is_inference())
        return cls(
            places,
            passed,
            tensors,
            list(map(_address, tensors)),
            counted,
            list(map(_version, counted)),
            _samples(tensors),
            tuple(t.untyped_storage() for t in tensors),
        )

    def are_those_of(self, arguments: Sequence[Any]) -> bool:
        """Whether a call has the same weights, of the same values. This is asked in every call."""
        return (
            all(map(operator.is_, map(arguments.__getitem__, self.places), self.passed))
            and list(map(_address, self.tensors)) == self.addresses
            and list(map(_version, self.counted)) == self.versions
            and all(sample.is_same() for sample in self.samples)
        )


def held_tensors(module: Any) -> list[Any]:
    """Tensors that a graph reads without being given them."""
    held: list[Any] = []
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = operator.attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor):
                held.append(value)
            elif isinstance(value, torch.nn.Module):
                held += (*value.parameters(), *value.buffers())
    return held
