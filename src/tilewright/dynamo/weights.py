"""The tensors that code was made with, and whether they are what they were."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclass(frozen=True, slots=True, eq=False)
class BoundWeights:
    """Weights that became constants of the code.

    TorchDynamo passes some of them to the graph in each call, at `places`; the graph itself holds the others.
    Writing to a tensor counts up its version, and assigning to its `data` moves it, which is seen by its
    address. Tensors made in inference mode have no version.
    """

    places: tuple[int, ...]
    passed: tuple[Any, ...]
    tensors: tuple[Any, ...]
    addresses: list[int]
    counted: tuple[Any, ...]
    versions: list[int]

    @classmethod
    def of(cls, module: Any, arguments: Sequence[Any], places: tuple[int, ...]) -> BoundWeights:
        """Those of a graph as it is called now."""
        passed = tuple(arguments[i] for i in places)
        tensors = tuple({id(t): t for t in (*passed, *held_tensors(module))}.values())
        counted = tuple(t for t in tensors if not t.is_inference())
        return cls(
            places, passed, tensors, list(map(_address, tensors)), counted, list(map(_version, counted))
        )

    def are_those_of(self, arguments: Sequence[Any]) -> bool:
        """Whether a call has the same weights, of the same values. This is asked in every call."""
        return (
            all(map(operator.is_, map(arguments.__getitem__, self.places), self.passed))
            and list(map(_address, self.tensors)) == self.addresses
            and list(map(_version, self.counted)) == self.versions
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
