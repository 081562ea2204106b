"""One graph of TorchDynamo: compiled for each shape that it meets, or run in eager mode."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import torch

from tilewright.dynamo.devices import RunsEagerly
from tilewright.dynamo.variant import Variant, built, is_scalar
from tilewright.errors import InputError
from tilewright.options import Options

logger = logging.getLogger("tilewright.dynamo")

MAX_VARIANTS = 8
"""Shapes of one graph that are compiled: more of them run in eager mode, as TorchDynamo's do."""

MAX_REFRESHES = 4
"""How often a graph is compiled again because its weights changed."""


class CompiledGraph:
    """What TorchDynamo calls in place of a graph: a tuple of tensors for tensors.

    It is compiled when it is first called, for the shapes that it is called with; weights become constants
    of the code. Where that cannot be, or gradients are recorded, it runs in eager mode: `remark` says why.
    """

    def __init__(
        self, module: Any, example_inputs: Sequence[Any], options: Options, *, checks_weights: bool = True
    ) -> None:
        self.remark: str | None = None
        self._checks_weights = checks_weights
        self._module = module
        self._options = options
        nodes = module.graph.find_nodes(op="placeholder")
        self._constants = tuple(i for i, node in enumerate(nodes) if _is_constant(node))
        self._scalars = frozenset(i for i, node in enumerate(nodes) if is_scalar(node, example_inputs[i]))
        self._numbers = tuple(
            i for i, v in enumerate(example_inputs) if i in self._scalars or not isinstance(v, torch.Tensor)
        )
        fixed = {*self._constants, *self._numbers}
        self._tensors = tuple(i for i in range(len(nodes)) if i not in fixed)
        self._is_open = any(not isinstance(d, int) for i in self._tensors for d in example_inputs[i].shape)
        self._variants: dict[tuple[Any, ...], Variant] = {}
        self._num_refreshes = 0
        self._records_nothing = False
        self._lock = threading.Lock()

    @property
    def is_compiled(self) -> bool:
        """Whether it has code for any shape, and runs it."""
        return self.remark is None and bool(self._variants)

    def __call__(self, *arguments: Any) -> Any:
        """The graph's outputs."""
        if self.remark is not None:
            return self._module(*arguments)
        if torch.is_grad_enabled() and not self._records_nothing and self._wants_gradients(arguments):
            return self._run_recording(arguments)
        variant = self._variants.get(self._key(arguments))
        if variant is None or not self._is_current(variant, arguments):
            with self._lock:
                variant = self._made(arguments)
        if variant is None:
            return self._module(*arguments)
        try:
            return variant.run(arguments)
        except InputError:  # an index outside its axis: torch's own error is what its user expects
            return self._module(*arguments)

    def _key(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """What differs between variants. TorchDynamo guards shapes itself where none of them is symbolic."""
        if not self._numbers and not self._is_open:
            return ()
        return (*self._values(arguments), *(arguments[i].shape for i in self._tensors))

    def _values(self, arguments: Sequence[Any]) -> list[Any]:
        """Numbers among the arguments, in their order."""
        return [arguments[i].item() if i in self._scalars else arguments[i] for i in self._numbers]

    def _is_current(self, variant: Variant, arguments: Sequence[Any]) -> bool:
        return not self._checks_weights or variant.weights.are_those_of(arguments)

    def _wants_gradients(self, arguments: Sequence[Any]) -> bool:
        return any(arguments[i].requires_grad for i in (*self._constants, *self._tensors))

    def _run_recording(self, arguments: Sequence[Any]) -> Any:
        """Run in eager mode while gradients are recorded; whether any comes out decides how to go on."""
        outputs = self._module(*arguments)
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in outputs):
            self._stay_eager("gradients are recorded; run it in torch.inference_mode() or torch.no_grad()")
        else:
            self._records_nothing = True
        return outputs

    def _made(self, arguments: Sequence[Any]) -> Variant | None:
        """A variant for these arguments, kept; None where the graph runs in eager mode."""
        if self.remark is not None:
            return None
        key = self._key(arguments)
        known = self._variants.get(key)
        if known is not None:
            if self._is_current(known, arguments):  # another thread was faster
                return known
            self._num_refreshes += 1
            if self._num_refreshes > MAX_REFRESHES:
                self._stay_eager("its weights change between calls")
                return None
        elif len(self._variants) >= MAX_VARIANTS:
            self._stay_eager(f"it was called with more than {MAX_VARIANTS} shapes and numbers")
            return None
        try:
            numbers = dict(zip(self._numbers, self._values(arguments), strict=True))
            variant = built(self._module, arguments, self._constants, numbers, self._options)
        except RunsEagerly as reason:
            self._stay_eager(str(reason))
            return None
        self._variants[key] = variant
        return variant

    def _stay_eager(self, reason: str) -> None:
        self.remark = f"a graph of {self._num_operators()} operators runs in eager mode: {reason}"
        self._variants.clear()
        logger.warning("%s", self.remark)

    def _num_operators(self) -> int:
        return sum(node.op.startswith("call_") for node in self._module.graph.nodes)

    def __repr__(self) -> str:
        state = self.remark or f"compiled for {len(self._variants)} shapes"
        return f"CompiledGraph({self._num_operators()} operators, {state})"


def _is_constant(node: Any) -> bool:
    """Whether an input of the graph is a parameter or a buffer of the module, which TorchDynamo marks."""
    return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))
