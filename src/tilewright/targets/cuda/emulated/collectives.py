"""What the lanes of an emulated warp do together: `ldmatrix`, shuffles, `mma`.

Each lane left its operands in its record, and finds its results there.
"""

from __future__ import annotations

from tilewright.records import dataclass
from tilewright.targets.cuda.emulated.records import (
    ABSENT,
    AT_COLLECTIVE,
    NUMBER,
    OPERANDS,
    RESULTS,
    SHARED,
    SPACE_SHIFT,
    STATE,
    Records,
)
from tilewright.targets.llvm.emitter import Param
from tilewright.targets.llvm.values import FLOAT, I1, I16, I32, I64, PTR, Int, Val, vec

# Collectives: from the second on, all lanes of a warp must take part.
BARRIER_WARP, SHUFFLE, LDMATRIX, MMA = 0, 1, 16, 32
FIRST_OF_WHOLE_WARPS = LDMATRIX


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the warp, 16 x 8 x `depth`: `per_word` elements lie in 32 bits."""

    suffix: str
    depth: int
    per_word: int
    element: str
    is_signed: tuple[bool, bool] = (True, True)

    @property
    def num_a(self) -> int:
        """Registers of A of a thread."""
        return self.depth // (2 * self.per_word)

    @property
    def num_b(self) -> int:
        """Registers of B of a thread."""
        return self.depth // (4 * self.per_word)

    @property
    def sum_type(self) -> str:
        """LLVM's type of the sums."""
        return "i32" if self.element == "i8" else "float"

    @property
    def argument_types(self) -> tuple[str, ...]:
        """What the intrinsic takes: A, B, sums."""
        operand = "<2 x half>" if self.element == "half" else "i32"
        return (*(operand,) * (self.num_a + self.num_b), *(self.sum_type,) * 4)


PRODUCTS = (
    Product("m16n8k8.row.col.f32.f32", 8, 2, "half"),
    Product("m16n8k16.row.col.f32.f32", 16, 2, "half"),
    Product("m16n8k8.row.col.bf16", 8, 2, "bfloat"),
    Product("m16n8k16.row.col.bf16", 16, 2, "bfloat"),
    Product("m16n8k4.row.col.tf32", 4, 1, "float"),
    Product("m16n8k8.row.col.tf32", 8, 1, "float"),
    Product("m16n8k16.row.col.s8", 16, 4, "i8"),
    Product("m16n8k32.row.col.s8", 32, 4, "i8"),
    Product("m16n8k32.row.col.u8", 32, 4, "i8", (False, False)),
    Product("m16n8k32.row.col.s8.u8", 32, 4, "i8", (True, False)),
    Product("m16n8k32.row.col.u8.s8", 32, 4, "i8", (False, True)),
)
SHUFFLES = ("up", "down", "bfly", "idx")


class Collectives(Records):
    """The functions of all of them, which `collective` chooses by their number."""

    def _collective(self) -> None:
        parameters = [Param("first", PTR), Param("count", I64), Param("operation", I64)]
        with self.function("collective", parameters, result=I1) as (first, count, operation):

            def case(number: int, name: str, arguments: list[Val]) -> None:
                def answer() -> None:
                    fine = self.call(name, arguments, I1, declare=False)
                    self.ret(fine)

                self.if_(self.icmp("eq", operation, number), answer)

            for number in range(len(PRODUCTS)):
                case(MMA + number, f"mma{number}", [first])
            for matrices in (1, 2, 4):
                for across in range(2):
                    arguments = [first, Val(str(matrices), I64), Val(str(across), I1)]
                    case(LDMATRIX + matrices + 8 * across, "ldmatrix", arguments)
            for mode in range(len(SHUFFLES)):
                case(SHUFFLE + mode, "shuffle", [first, count, Val(str(mode), I64)])
            self.ret(Val("true", I1))

    def _ldmatrix(self) -> None:
        """Lane 8 m + r gives the address of row r of matrix m, whose words go to lanes 4 r + word; across,
        its element c goes to half r % 2 of lane 4 c + r / 2."""
        parameters = [Param("first", PTR), Param("count", I64), Param("across", I1)]
        with self.function("ldmatrix", parameters, result=I1) as (first, count, across):

            def row(place: Int, _: list[Val]) -> None:
                matrix, r = self.udiv(place, 8), self.urem(place, 8)
                giver = self.record(first, place)
                address, site = self.get(giver, OPERANDS), self.get(giver, OPERANDS + 8)
                asked = [Val(str(n), I64) for n in (16, 16, SHARED << SPACE_SHIFT)]
                told = [site, address, *asked, self.get(giver, OPERANDS + 16, PTR), self.get(giver, NUMBER)]
                fine = self.call("find", told, I1, declare=False)
                assert fine is not None
                self.if_(self.not_(fine), lambda: self.ret(Val("false", I1)))
                source = self.get(giver, OPERANDS, PTR)
                result = self.add(self.mul(matrix, 4), RESULTS)

                def along() -> None:
                    for word in range(4):
                        lane = self.record(first, self.add(self.mul(r, 4), word))
                        self.put(self.get(source, 4 * word, I32), lane, result)

                def transposed() -> None:
                    half = self.add(result, self.mul(self.urem(r, 2), 2))
                    for column in range(8):
                        lane = self.record(first, self.add(self.udiv(r, 2), 4 * column))
                        self.put(self.get(source, 2 * column, I16), lane, half)

                self.if_(across, transposed, along)

            self.loop(0, self.mul(count, 8), 1, row, nonempty=True)
            self.ret(Val("true", I1))

    def _shuffle(self) -> None:
        """The rules of PTX's `shfl.sync`: which lane a value comes from."""
        parameters = [Param("first", PTR), Param("count", I64), Param("mode", I64)]
        with self.function("shuffle", parameters, result=I1) as (first, count, mode):

            def lane(place: Int, _: list[Val]) -> None:
                i, record = self.index(place), self.record(first, place)

                def give() -> None:
                    mask, b, c = (
                        self.cast("zext", self.get(record, OPERANDS + offset, I32), "i64")
                        for offset in (0, 8, 12)
                    )
                    b, segment = self.and_(b, 31), self.and_(self.lshr(c, 8), 31)
                    inverse = self.xor(segment, 31)
                    least = self.and_(i, segment)
                    most = self.or_(least, self.and_(self.and_(c, 31), inverse))
                    up = self.isub(i, b)
                    lanes = [up, self.iadd(i, b), self.xor(i, b), self.or_(least, self.and_(b, inverse))]
                    fits = [
                        self.icmp("sge", up, most),
                        *(self.icmp("sle", other, most) for other in lanes[1:]),
                    ]
                    giver = i
                    for number, (other, is_in) in enumerate(zip(lanes, fits, strict=True)):
                        chosen = self.and_(self.icmp("eq", mode, number), is_in)
                        giver = self.select(chosen, other, giver)
                    exists = self.icmp("slt", giver, count)
                    source = self.record(first, self.select(exists, giver, 0))
                    here = self.icmp("eq", self.get(source, STATE), AT_COLLECTIVE)
                    named = self.and_(self.lshr(mask, giver), self.lshr(mask, i))
                    named = self.icmp("eq", self.and_(named, 1), 1)

                    def absent() -> None:
                        self.set_fields(fault=ABSENT, fault_thread=self.get(record, NUMBER))
                        self.ret(Val("false", I1))

                    self.if_(self.not_(self.and_(self.and_(exists, here), named)), absent)
                    self.put(self.get(source, OPERANDS + 4, I32), record, RESULTS)

                self.if_(self.icmp("eq", self.get(record, STATE), AT_COLLECTIVE), give)

            self.loop(0, count, 1, lane, nonempty=True)
            self.ret(Val("true", I1))

    def _product(self, number: int, product: Product) -> None:
        """`mma`: operands of all lanes become two matrices of float32 (of integers: of 32 bits), whose
        product is added up in the order of their depth."""
        depth, per_word = product.depth, product.per_word
        single = vec(product.sum_type)
        with self.function(f"mma{number}", [Param("first", PTR)], result=I1) as (first,):
            a, b, c = (self.alloca(single, 8 * n) for n in (2 * depth, depth, 16))

            def at(matrix: Val, row: Int, column: Int, width: int) -> Val:
                return self.gep(matrix, self.add(self.mul(row, width), column), single.element)

            def gather(lane: Int, _: list[Val]) -> None:
                record, g, t = self.record(first, lane), self.udiv(lane, 4), self.urem(lane, 4)
                for r in range(product.num_a):
                    word = self._widened(product, self.gep(record, OPERANDS + 4 * r), is_a=True)
                    column = self.add(self.mul(t, per_word), 4 * per_word * (r // 2))
                    self.store(word, at(a, self.add(g, 8 * (r % 2)), column, depth))
                for r in range(product.num_b):
                    offset = OPERANDS + 4 * (product.num_a + r)
                    word = self._widened(product, self.gep(record, offset), is_a=False)
                    for i in range(per_word):
                        row = self.add(self.mul(t, per_word), 4 * per_word * r + i)
                        self.store(self.extract(word, i), at(b, row, g, 8))
                for half in range(2):
                    offset = OPERANDS + 4 * (product.num_a + product.num_b) + 8 * half
                    sums = self.load(single.with_lanes(2), self.gep(record, offset))
                    self.store(sums, at(c, self.add(g, 8 * half), self.mul(t, 2), 8))

            def multiply(row: Int, _: list[Val]) -> None:
                wide = single.with_lanes(8)
                total = self.load(wide, at(c, row, 0, 8))
                for k in range(depth):
                    x, y = self.broadcast_load(wide, at(a, row, k, depth)), self.load(wide, at(b, k, 0, 8))
                    total = self.fma(x, y, total) if single.is_float else self.iadd(total, self.imul(x, y))
                self.store(total, at(c, row, 0, 8))

            def scatter(lane: Int, _: list[Val]) -> None:
                record, g, t = self.record(first, lane), self.udiv(lane, 4), self.urem(lane, 4)
                for half in range(2):
                    sums = self.load(single.with_lanes(2), at(c, self.add(g, 8 * half), self.mul(t, 2), 8))
                    self.store(sums, self.gep(record, RESULTS + 8 * half))

            self.loop(0, 32, 1, gather)
            self.loop(0, 16, 1, multiply)
            self.loop(0, 32, 1, scatter)
            self.ret(Val("true", I1))

    def _widened(self, product: Product, pointer: Val, *, is_a: bool) -> Val:
        """A register's elements in the type of the sums; tf32 keeps 10 bits of the fraction."""
        element, lanes = product.element, product.per_word
        if element == "float":
            return self.bitcast(self.and_(self.load(I32, pointer), -8192), FLOAT)
        if element == "i8":
            is_signed = product.is_signed[0 if is_a else 1]
            return self.cast("sext" if is_signed else "zext", self.load(vec("i8", lanes), pointer), "i32")
        if element == "bfloat":
            bits = self.cast("zext", self.load(vec("i16", lanes), pointer), "i32")
            return self.bitcast(self.shl(bits, 16), vec("float", lanes))
        return self.cast("fpext", self.load(vec("half", lanes), pointer), "float")
