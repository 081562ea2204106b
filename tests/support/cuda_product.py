"""A convolution along rows written by hand as a GPU's kernel: asynchronous copies, swizzle, ldmatrix, mma.

`y[row][n] = sum(x[row + tap - padding][c] * w[n][tap][c])` with 32 channels, in tiles of 32 x 32 by blocks of
four warps, a step for each tap. Each option plants a fault.
"""

import numpy as np

from tilewright.targets.cuda.device import Device, KernelCode, Launch, Span

CHANNELS = TILE = 32
STAGE_BYTES = 2 * TILE * CHANNELS * 2


def product_text(
    rows: int,
    columns: int,
    taps: int,
    *,
    stages: int = 3,
    name: str = "product",
    barrier: bool = True,
    extra_groups: int = 0,
    masked: bool = True,
    swizzled: bool = True,
) -> str:
    """The module."""
    lines: list[str] = []
    names = iter(range(1 << 20))

    def op(text: str) -> str:
        name = f"%v{next(names)}"
        lines.append(f"  {name} = {text}")
        return name

    def swizzle(row: str, chunk: str) -> str:
        """Byte of a chunk of 16 in a tile whose rows have 64."""
        bits = op(f"lshr i32 {row}, 1")
        place = op(f"xor i32 {chunk}, {op(f'and i32 {bits}, 3')}") if swizzled else chunk
        return op(f"add i32 {op(f'mul i32 {row}, 64')}, {op(f'mul i32 {place}, 16')}")

    def at(base: str, offset: str, space: int = 1) -> str:
        return op(f"getelementptr i8, ptr addrspace({space}) {base}, i32 {offset}")

    thread = op("call i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
    lane = op(f"and i32 {thread}, 31")
    warp = op(f"lshr i32 {thread}, 5")
    first_row = op(f"mul i32 {op('call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()')}, {TILE}")
    first_column = op(f"mul i32 {op('call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()')}, {TILE}")
    row, chunk = op(f"lshr i32 {thread}, 2"), op(f"and i32 {thread}, 3")
    place = swizzle(row, chunk)
    chunk_bytes = op(f"mul i32 {chunk}, 16")
    column = op(f"add i32 {first_column}, {row}")
    weights = op(f"add i32 {op(f'mul i32 {column}, {taps * CHANNELS * 2}')}, {chunk_bytes}")
    output_row = op(f"add i32 {first_row}, {row}")

    def issue(tap: int) -> None:
        stage = at("@tiles", str(tap % stages * STAGE_BYTES), 3)
        source = op(f"add i32 {output_row}, {tap - taps // 2}")
        inside = op(f"icmp ult i32 {source}, {rows}")
        there = op(f"select i1 {inside}, i32 {source}, i32 0") if masked else source
        num_bytes = op(f"select i1 {inside}, i32 16, i32 0") if masked else "16"
        of = at("%x", op(f"add i32 {op(f'mul i32 {there}, {CHANNELS * 2}')}, {chunk_bytes}"))
        to = at(stage, place, 3)
        copy = "call void @llvm.nvvm.cp.async.cg.shared.global.16"
        lines.append(f"  {copy}.s(ptr addrspace(3) {to}, ptr addrspace(1) {of}, i32 {num_bytes})")
        of = at("%w", op(f"add i32 {weights}, {tap * CHANNELS * 2}"))
        to = at(stage, op(f"add i32 {place}, {STAGE_BYTES // 2}"), 3)
        lines.append(f"  {copy}(ptr addrspace(3) {to}, ptr addrspace(1) {of})")

    m, n = op(f"mul i32 {op(f'and i32 {warp}, 1')}, 16"), op(f"mul i32 {op(f'lshr i32 {warp}, 1')}, 16")
    a_row = op(f"add i32 {m}, {op(f'and i32 {lane}, 15')}")
    a_chunk = op(f"lshr i32 {lane}, 4")
    upper = op(f"lshr i32 {op(f'and i32 {lane}, 16')}, 1")
    b_line = op(f"or i32 {op(f'and i32 {lane}, 7')}, {upper}")
    b_row = op(f"add i32 {n}, {b_line}")
    b_chunk = op(f"and i32 {op(f'lshr i32 {lane}, 3')}, 1")
    words = "{ i32, i32, i32, i32 }"
    ldmatrix = "@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3"
    four = "{ float, float, float, float }"
    sums = [["0.0"] * 4, ["0.0"] * 4]
    for tap in range(stages - 1):
        if tap < taps:
            issue(tap)
        lines.append("  call void @llvm.nvvm.cp.async.commit.group()")
    for tap in range(taps):
        lines.append(f"  call void @llvm.nvvm.cp.async.wait.group(i32 {stages - 2 + extra_groups})")
        if barrier:
            lines.append("  call void @llvm.nvvm.barrier0()")
        if tap + stages - 1 < taps:
            issue(tap + stages - 1)
        lines.append("  call void @llvm.nvvm.cp.async.commit.group()")
        stage = at("@tiles", str(tap % stages * STAGE_BYTES), 3)
        for half in range(2):
            load = f"call {words} {ldmatrix}(ptr addrspace(3)"
            a = op(f"{load} {at(stage, swizzle(a_row, op(f'add i32 {a_chunk}, {2 * half}')), 3)})")
            b_place = swizzle(b_row, op(f"add i32 {b_chunk}, {2 * half}"))
            b = op(f"{load} {at(stage, op(f'add i32 {b_place}, {STAGE_BYTES // 2}'), 3)})")
            pair = "<2 x half>"
            a_words = [op(f"bitcast i32 {op(f'extractvalue {words} {a}, {i}')} to {pair}") for i in range(4)]
            b_words = [op(f"bitcast i32 {op(f'extractvalue {words} {b}, {i}')} to {pair}") for i in range(4)]
            for part in range(2):
                operands = ", ".join(
                    [f"{pair} {word}" for word in (*a_words, *b_words[2 * part : 2 * part + 2])]
                    + [f"float {value}" for value in sums[part]]
                )
                d = op(f"call {four} @llvm.nvvm.mma.m16n8k16.row.col.f32.f32({operands})")
                sums[part] = [op(f"extractvalue {four} {d}, {i}") for i in range(4)]
    g, t = op(f"lshr i32 {lane}, 2"), op(f"and i32 {lane}, 3")
    y_row = op(f"add i32 {op(f'add i32 {first_row}, {m}')}, {g}")
    y_column = op(f"add i32 {op(f'add i32 {first_column}, {n}')}, {op(f'mul i32 {t}, 2')}")
    for part in range(2):
        for half in range(2):
            line = op(f"add i32 {y_row}, {8 * half}")
            lines.append(
                f"  br i1 {op(f'icmp ult i32 {line}, {rows}')}, label %s{part}{half}, label %e{part}{half}"
            )
            lines.append(f"s{part}{half}:")
            place = op(f"add i32 {op(f'mul i32 {line}, {columns}')}, {op(f'add i32 {y_column}, {8 * part}')}")
            low = op(f"insertelement <2 x float> poison, float {sums[part][2 * half]}, i32 0")
            both = op(f"insertelement <2 x float> {low}, float {sums[part][2 * half + 1]}, i32 1")
            to = op(f"getelementptr float, ptr addrspace(1) %y, i32 {place}")
            lines.append(f"  store <2 x float> {both}, ptr addrspace(1) {to}, align 8")
            lines.append(f"  br label %e{part}{half}")
            lines.append(f"e{part}{half}:")
    parameters = ", ".join(f"ptr addrspace(1) noalias %{buffer}" for buffer in "xwy")
    return f"""
@tiles = internal addrspace(3) global [{stages * STAGE_BYTES} x i8] undef, align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.cg.shared.global.16.s(ptr addrspace(3), ptr addrspace(1), i32)
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32 immarg)
declare {words} {ldmatrix}(ptr addrspace(3))
declare {four} @llvm.nvvm.mma.m16n8k16.row.col.f32.f32({", ".join(["<2 x half>"] * 6 + ["float"] * 4)})
define ptx_kernel void @{name}({parameters}) "nvvm.maxntid"="128" {{
{chr(10).join(lines)}
  ret void
}}
"""


class Product:
    """Operands of a product on a device, and the expected result."""

    def __init__(self, device: Device, rows: int, columns: int, taps: int, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.shape = (rows, columns, taps)
        x = draw.standard_normal((rows, CHANNELS)).astype(np.float16)
        w = draw.standard_normal((columns, taps, CHANNELS)).astype(np.float16)
        wide = np.pad(x, ((taps // 2, taps // 2), (0, 0))).astype(np.float64)
        windows = np.stack([wide[tap : tap + rows] for tap in range(taps)], 1)
        self.expected = np.einsum("rtc,ntc->rn", windows, w.astype(np.float64))
        self.device = device
        self.memories = [device.allocate(size) for size in (x.nbytes, w.nbytes, rows * columns * 4)]
        for memory, array in zip(self.memories, (x, w), strict=False):
            device.write(memory.address, array)

    def launch(self, name: str = "product") -> Launch:
        """The launch of its kernel."""
        rows, columns, _ = self.shape
        x, w, y = (
            Span(buffer, memory.address, memory.size_bytes)
            for buffer, memory in zip("xwy", self.memories, strict=True)
        )
        grid = (-(-rows // TILE), columns // TILE, 1)
        return Launch(name, grid, (128, 1, 1), (x.address, w.address, y.address), (x, w), (y,))

    def code(self, **options: object) -> KernelCode:
        """Its kernel."""
        return KernelCode(product_text(*self.shape, **options))  # type: ignore[arg-type]

    def error(self) -> float:
        """The largest difference from the expected result; infinite for NaN."""
        y = np.zeros(self.expected.shape, np.float32)
        self.device.read(self.memories[2].address, y)
        difference = np.abs(y - self.expected).max()
        return float("inf") if np.isnan(difference) else float(difference)
