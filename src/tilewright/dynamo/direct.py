"""Runs of compiled code on the memory of tensors, without arrays in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import TensorInfo

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class DirectRun:
    """Code that reads and writes tensors where they are: place, type and shape of each."""

    run_at: Callable[[Sequence[int], Sequence[int]], None]
    inputs: tuple[tuple[int, Any, Any], ...]
    outputs: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, compiled: CompiledModel, place_of: Mapping[str, int]) -> DirectRun | None:
        """That of a model whose inputs are these arguments of a call; None where its target has none."""
        find = getattr(compiled.load(), "at_addresses", None)
        run_at = None if find is None else find()
        if run_at is None:
            return None
        inputs = [(place_of[spec.name], *_kind(spec)) for spec in compiled.get_inputs()]
        return cls(run_at, tuple(inputs), tuple(map(_kind, compiled.get_outputs())))

    def __call__(self, arguments: Sequence[Any]) -> list[Any] | None:
        """The results, in tensors of their own; None where an argument does not lie as the code reads it."""
        addresses = []
        for place, dtype, shape in self.inputs:
            tensor = arguments[place]
            if (
                type(tensor) not in _PLAIN_TYPES
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or not tensor.is_cpu
                or not tensor.is_contiguous()
                or tensor.is_neg()
            ):
                return None
            addresses.append(tensor.data_ptr())
        results = [torch.empty(shape, dtype=dtype, device=_CPU) for dtype, shape in self.outputs]
        self.run_at(addresses, [result.data_ptr() for result in results])
        return results


def _kind(spec: TensorInfo) -> tuple[Any, Any]:
    """Type and shape, as torch has them."""
    return getattr(torch, str(spec.dtype)), torch.Size(spec.shape)
