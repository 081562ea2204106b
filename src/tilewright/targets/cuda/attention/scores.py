"""What every kernel of attention does with a head: where tensors begin, and what makes a score of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.llvm.attention import AttentionProblem, Walked
from tilewright.targets.llvm.exprgen import emit_expr, from_storage, storage_type
from tilewright.targets.llvm.layout import OperandKey
from tilewright.targets.llvm.values import Int, Val


class HeadCode:
    """A kernel whose blocks each have a head: their number along `y`."""

    def __init__(self, e: CudaEmitter, problem: AttentionProblem, pointers: Mapping[OperandKey, Val]) -> None:
        self.e, self.problem, self.pointers = e, problem, pointers
        self.thread = e.thread()
        heads = e.digits_of(e.block("y"), [problem.extents[loop] for loop in problem.outer])
        self.head = dict(zip(problem.outer, heads, strict=True))
        self.num_rows, self.num_keys = problem.extents[problem.row], problem.extents[problem.column]

    def base(self, walked: Walked) -> Val:
        """The address of the head's first element."""
        e = self.e
        elements: Int = walked.start
        for loop, index in self.head.items():
            elements = e.add(elements, e.mul(index, walked.step(loop)))
        return e.gep(self.pointers[walked.operand.key], elements, storage_type(walked.operand.dtype).element)

    def mask_bases(self) -> dict[int, Val]:
        """The same of masks, by the number of the read."""
        return {read: self.base(mask) for read, mask in self.problem.masks.items()}

    def finished(self, value: Val, row: Int, key: Int, bases: Mapping[int, Val]) -> Val:
        """The score of a query and a key, both of which there are, from the sum of their products."""
        e, problem = self.e, self.problem
        if problem.finish is None:
            return value
        places: dict[str, Int] = {**self.head, problem.row: row, problem.column: key}

        def mask(read: int) -> Val:
            walked = problem.masks[read]
            down, right = walked.step(problem.row), walked.step(problem.column)
            elements = e.add(e.mul(places[problem.row], down), e.mul(places[problem.column], right))
            stored = storage_type(walked.operand.dtype)
            return from_storage(
                e, e.load(stored, e.gep(bases[read], elements, stored.element)), walked.operand.dtype
            )

        def index(name: str) -> Val:
            return e.index(places.get(problem.names[name], 0))

        return emit_expr(e, problem.finish, mask, value, index)


def reading(value: Val) -> Callable[[int], Val]:
    """Reads that all give one value."""
    return lambda _: value
