"""A problem of the graph-scheduling contest: operators on tensors, one fast memory, one slow one.

The file is untrusted: every number is checked, every error names the file, the key and the place in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from math import isqrt, prod
from pathlib import Path
from typing import Any

from tilewright.errors import ModelRejected, UsageError
from tilewright.files import read_at_most
from tilewright.records import dataclass
from tilewright.text.printable import printable

MAX_FILE_BYTES = 4 << 20
MAX_OPERATORS = 1_000
MAX_INPUTS = 64
MAX_EXTENT = 1 << 24
MAX_NUMBER = 1 << 50
MIN_BANDWIDTH = 1e-9
"""Elements per unit of time below which times of large tensors would no longer be numbers."""

MAX_STEPS = 1 << 20
"""Tiles times steps of a subgraph: each is visited when a schedule is checked."""

MAX_GRANULARITIES = 1 << 21
"""Granularities of an operator that are compared: all at once, in arrays of this size."""

KEYS = (
    "widths",
    "heights",
    "inputs",
    "outputs",
    "base_costs",
    "op_types",
    "fast_memory_capacity",
    "slow_memory_bandwidth",
    "native_granularity",
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: the tensors that it reads, the one that it makes, its cost for a native tile."""

    inputs: tuple[int, ...]
    output: int
    cost: float
    is_product: bool


@dataclass(frozen=True, slots=True)
class ContestProblem:
    """A graph and its machine; sizes are in elements, times in the contest's own unit."""

    name: str
    widths: tuple[int, ...]
    heights: tuple[int, ...]
    operators: tuple[Operator, ...]
    capacity: int
    bandwidth: float  # elements per unit of time
    native: tuple[int, int, int]  # width, height, depth
    maker: dict[int, int] = field(compare=False)
    """The operator that makes a tensor; graph inputs have none."""
    users: dict[int, tuple[int, ...]] = field(compare=False)
    """The operators that read a tensor."""

    @property
    def results(self) -> tuple[int, ...]:
        """Tensors that nothing reads: the graph's outputs."""
        return tuple(t for t in sorted(self.maker) if t not in self.users)

    def size(self, tensor: int) -> int:
        """Elements of a tensor."""
        return self.widths[tensor] * self.heights[tensor]

    def depth(self, operator: int) -> int:
        """Length of the sum of a product."""
        return self.widths[self.operators[operator].inputs[0]]


def read_problem(path: Path | str) -> ContestProblem:
    """Read a problem file.

    Raises:
        UsageError: there is no such file.
        ModelRejected: it cannot be read, or is no problem of the contest.
    """
    path = Path(path)
    shown = printable(str(path))
    try:
        data = read_at_most(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise UsageError(f"{shown}: no such file; check the path.") from None
    except OSError as error:
        raise ModelRejected(f"{shown}: cannot be read ({error.strerror or error}).") from error
    if len(data) > MAX_FILE_BYTES:
        raise ModelRejected(f"{shown}: larger than MAX_FILE_BYTES = {MAX_FILE_BYTES}; no problem is.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{shown}: is not JSON ({printable(str(error))}).") from error
    return parse_problem(document, path.stem, shown)


def parse_problem(document: Any, name: str, where: str = "problem") -> ContestProblem:
    """Check a decoded problem; `where` begins every error.

    Raises:
        ModelRejected: a key is missing, or its value makes no sense.
    """
    fields = _Fields(document, where)
    widths = fields.integers("widths", MAX_EXTENT)
    heights = fields.integers("heights", MAX_EXTENT)
    if len(widths) != len(heights):
        fields.refuse("heights", f"has {len(heights)} entries, but 'widths' has {len(widths)}")
    inputs = fields.lists("inputs", len(widths))
    outputs = fields.lists("outputs", len(widths))
    kinds = fields.sequence("op_types")
    costs = fields.sequence("base_costs")
    for key, values in (("outputs", outputs), ("op_types", kinds), ("base_costs", costs)):
        if len(values) != len(inputs):
            fields.refuse(key, f"has {len(values)} entries, but 'inputs' has {len(inputs)}")
    if not 1 <= len(inputs) <= MAX_OPERATORS:
        fields.refuse("inputs", f"describes {len(inputs)} operators; expected 1 to {MAX_OPERATORS}")
    native = fields.integers("native_granularity", MAX_EXTENT)
    if len(native) not in (2, 3):
        fields.refuse("native_granularity", "expected [w, h]")
    operators = []
    for i, (read, made, kind, cost) in enumerate(zip(inputs, outputs, kinds, costs, strict=True)):
        if kind not in ("MatMul", "Pointwise"):
            fields.refuse(f"op_types[{i}]", f"is {_shown(kind)}; expected MatMul or Pointwise")
        if len(made) != 1:
            fields.refuse(f"outputs[{i}]", f"names {len(made)} tensors; an operator makes one")
        if kind == "MatMul" and len(read) != 2:
            fields.refuse(f"inputs[{i}]", f"names {len(read)} tensors; MatMul reads two")
        if not read:
            fields.refuse(f"inputs[{i}]", "is empty; an operator reads at least one tensor")
        if len(read) > MAX_INPUTS:
            fields.refuse(f"inputs[{i}]", f"names {len(read)} tensors; expected at most {MAX_INPUTS}")
        number = fields.number(f"base_costs[{i}]", cost, least=0.0)
        operators.append(Operator(tuple(read), made[0], number, kind == "MatMul"))
    problem = ContestProblem(
        name=name,
        widths=widths,
        heights=heights,
        operators=tuple(operators),
        capacity=fields.integer("fast_memory_capacity", MAX_NUMBER),
        bandwidth=fields.number(
            "slow_memory_bandwidth", fields.value("slow_memory_bandwidth"), least=MIN_BANDWIDTH
        ),
        native=(native[0], native[1], native[0]),
        maker=_makers(operators, fields),
        users=_users(operators),
    )
    _check_shapes(problem, fields)
    _check_order(problem, fields)
    _check_work(problem, fields)
    return problem


@dataclass(frozen=True, slots=True)
class _Fields:
    """The keys of a decoded file, each checked as it is taken."""

    document: Any
    where: str

    def refuse(self, key: str, what: str) -> None:
        raise ModelRejected(f"{self.where}: '{key}' {what}.")

    def value(self, key: str) -> Any:
        if not isinstance(self.document, dict):
            raise ModelRejected(
                f"{self.where}: is no problem of the graph-scheduling contest: expected an object."
            )
        if key not in self.document:
            raise ModelRejected(
                f"{self.where}: is no problem of the graph-scheduling contest: '{key}' is missing; "
                f"expected {', '.join(KEYS)}."
            )
        return self.document[key]

    def sequence(self, key: str) -> Sequence[Any]:
        found = self.value(key)
        if not isinstance(found, list):
            self.refuse(key, f"is {_shown(found)}; expected a list")
        return list(found)

    def integer(self, key: str, most: int) -> int:
        return self._integer(key, self.value(key), 1, most)

    def integers(self, key: str, most: int) -> tuple[int, ...]:
        return tuple(self._integer(f"{key}[{i}]", x, 1, most) for i, x in enumerate(self.sequence(key)))

    def lists(self, key: str, num_tensors: int) -> list[list[int]]:
        found = []
        for i, entry in enumerate(self.sequence(key)):
            if not isinstance(entry, list):
                self.refuse(f"{key}[{i}]", f"is {_shown(entry)}; expected a list of tensors")
            found.append([self._integer(f"{key}[{i}]", x, 0, num_tensors - 1) for x in entry])
        return found

    def number(self, key: str, found: Any, least: float) -> float:
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not is_number or not least <= found <= MAX_NUMBER:
            self.refuse(key, f"is {_shown(found)}; expected a number from {least:g} to {MAX_NUMBER}")
        return float(found)

    def _integer(self, key: str, found: Any, least: int, most: int) -> int:
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            self.refuse(key, f"holds {_shown(found)}; expected an integer from {least} to {most}")
        return int(found)


def _shown(value: Any) -> str:
    text = printable(
        repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__
    )
    return text if len(text) <= 60 else text[:57] + "..."


def _makers(operators: Sequence[Operator], fields: _Fields) -> dict[int, int]:
    maker: dict[int, int] = {}
    for i, operator in enumerate(operators):
        if operator.output in maker:
            fields.refuse(
                f"outputs[{i}]",
                f"names tensor {operator.output}, which operator {maker[operator.output]} makes",
            )
        maker[operator.output] = i
    return maker


def _users(operators: Sequence[Operator]) -> dict[int, tuple[int, ...]]:
    users: dict[int, list[int]] = {}
    for i, operator in enumerate(operators):
        for tensor in dict.fromkeys(operator.inputs):
            users.setdefault(tensor, []).append(i)
    return {tensor: tuple(readers) for tensor, readers in users.items()}


def _check_shapes(problem: ContestProblem, fields: _Fields) -> None:
    widths, heights = problem.widths, problem.heights
    for i, operator in enumerate(problem.operators):
        made = (widths[operator.output], heights[operator.output])
        if operator.is_product:
            left, right = operator.inputs
            if widths[left] != heights[right] or made != (widths[right], heights[left]):
                fields.refuse(
                    f"inputs[{i}]",
                    f"multiplies {widths[left]}x{heights[left]} by {widths[right]}x{heights[right]} "
                    f"(width x height) into {made[0]}x{made[1]}, which does not fit",
                )
        for tensor in () if operator.is_product else operator.inputs:
            if (widths[tensor], heights[tensor]) != made:
                fields.refuse(f"inputs[{i}]", f"names tensor {tensor}, whose shape is not that of its output")


def _check_order(problem: ContestProblem, fields: _Fields) -> None:
    """Operators may come in any order, but in no circle."""
    missing = [sum(t in problem.maker for t in dict.fromkeys(o.inputs)) for o in problem.operators]
    ready = [i for i, count in enumerate(missing) if not count]
    num_done = 0
    while ready:
        i = ready.pop()
        num_done += 1
        for j in problem.users.get(problem.operators[i].output, ()):
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    if num_done < len(problem.operators):
        stuck = next(i for i, count in enumerate(missing) if count)
        fields.refuse(f"inputs[{stuck}]", "depends on the operator's own output: the graph has a circle")


def _check_work(problem: ContestProblem, fields: _Fields) -> None:
    """No operator is cut into more tiles and steps, or may be in more ways, than a search can compare."""
    for i, operator in enumerate(problem.operators):
        shape = (problem.widths[operator.output], problem.heights[operator.output])
        extents = (*shape, problem.depth(i) if operator.is_product else 1)
        axes = list(zip(extents, problem.native, strict=True))
        num_steps = prod(-(-extent // native) for extent, native in axes)
        num_granularities = prod(min(extent, native, 2 * isqrt(extent)) for extent, native in axes)
        for count, most, what in (
            (num_steps, MAX_STEPS, "tiles and steps of the native granularity"),
            (num_granularities, MAX_GRANULARITIES, "granularities"),
        ):
            if count > most:
                fields.refuse(f"outputs[{i}]", f"has {count} {what}; expected at most {most}")
