"""The emulated device: values of intrinsics, and faults that only some orders of warps and nodes show."""

# mypy: disable-error-code="attr-defined"

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.cuda import needs_fibers
from tests.support.cuda_product import Product

from tilewright.errors import InternalError, UsageError
from tilewright.targets.cuda.device import Copy, DeviceError, GraphNode, Join, KernelCode, Launch, Span
from tilewright.targets.cuda.emulated import device as emulated
from tilewright.targets.cuda.emulated.device import EmulatedDevice

pytestmark = needs_fibers


def errors(product: Product, copies: str = "late", **fault: Any) -> list[float]:
    """The errors of a product in several orders."""
    device = product.device
    assert isinstance(device, EmulatedDevice)
    device.copies = copies  # type: ignore[assignment]
    graph = device.graph([GraphNode("product", product.launch())], device.load([product.code(**fault)]))
    found = []
    for device.seed in range(4):
        graph.launch()
        found.append(product.error())
    return found


def test_a_product_is_right_in_every_order_of_blocks_warps_and_lanes() -> None:
    product = Product(EmulatedDevice(), rows=50, columns=64, taps=5)
    assert max(*errors(product, "early"), *errors(product, "late")) < 1e-4


def test_a_missing_barrier_is_found_in_every_order() -> None:
    assert min(errors(Product(EmulatedDevice(), rows=32, columns=32, taps=5), barrier=False)) == np.inf


def test_a_wait_for_one_group_too_few_is_found_where_copies_are_late() -> None:
    product = Product(EmulatedDevice(), rows=32, columns=32, taps=5)
    assert min(errors(product, "late", extra_groups=1)) == np.inf
    assert max(errors(product, "early", extra_groups=1)) < 1e-4


def test_padding_that_is_not_masked_is_found() -> None:
    product = Product(EmulatedDevice(), rows=50, columns=32, taps=3)
    with pytest.raises(DeviceError) as refused:
        errors(product, masked=False)
    assert str(refused.value) == (
        "kernel 'product', block (0, 0, 0), thread 0: load of 16 bytes at byte -64 of 'x' (3200 bytes), "
        "where it may not."
    )


def text(body: str, *declared: str, parameters: str = "ptr %x, ptr %y", before: str = "") -> KernelCode:
    declarations = "\n".join(
        f"declare {name}" for name in (*declared, "i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
    )
    return KernelCode(
        f"{before}\n{declarations}\ndefine ptx_kernel void @k({parameters}) {{\n"
        f"  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n{body}\n  ret void\n}}\n"
    )


def test_more_shared_memory_than_a_text_may_declare_is_refused() -> None:
    device = EmulatedDevice()
    for size_bytes in (48 * 1024, 48 * 1024 + 16):
        array = f"@a = internal addrspace(3) global [{size_bytes} x i8] undef, align 16"
        kernels = device.load([text("  store i32 %t, ptr addrspace(3) @a, align 4", before=array)])
        graph = device.graph([GraphNode("k", Launch("k", (1, 1, 1), (1, 1, 1), (0, 0), (), ()))], kernels)
        if size_bytes == 48 * 1024:
            graph.launch()
            continue
        with pytest.raises(
            DeviceError, match="'k': 49168 bytes of shared memory, at most 49152 are possible"
        ):
            graph.launch()


LOAD = "  %p = getelementptr i32, ptr %x, i32 %t\n  %v = load i32, ptr %p, align 4\n"
STORE = "  %q = getelementptr i32, ptr %y, i32 %t\n  store i32 %r, ptr %q, align 4\n"


def run(
    code: KernelCode,
    x: np.ndarray,
    shape: tuple[int, ...],
    *,
    threads: int = 32,
    seed: int = 1,
    grid: tuple[int, int, int] = (1, 1, 1),
) -> np.ndarray:
    """What a kernel, of one block unless told otherwise, makes of an array of 32-bit numbers."""
    device = EmulatedDevice(seed=seed)
    of, to = device.allocate(x.nbytes), device.allocate(4 * int(np.prod(shape)))
    device.write(of.address, x)
    x_span, y_span = Span("x", of.address, of.size_bytes), Span("y", to.address, to.size_bytes)
    launch = Launch("k", grid, (threads, 1, 1), (of.address, to.address), (x_span,), (y_span,))
    device.graph([GraphNode("k", launch)], device.load([code])).launch()
    y = np.zeros(shape, x.dtype)
    device.read(to.address, y)
    return y


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("mode", "b", "c", "source"),
    [
        ("bfly", 4, 31, LANES ^ 4),
        ("up", 3, 0, np.where(LANES >= 3, LANES - 3, LANES)),
        ("down", 3, 31, np.where(LANES < 29, LANES + 3, LANES)),
        ("idx", 5, 31, np.full(32, 5)),
        ("idx", 5, (24 << 8) | 31, LANES // 8 * 8 + 5),  # groups of eight lanes
        ("down", 3, (24 << 8) | 31, np.where(LANES % 8 < 5, LANES + 3, LANES)),
    ],
)
def test_shuffles_follow_the_rules_of_ptx(mode: Any, b: Any, c: Any, source: Any) -> None:
    name = f"i32 @llvm.nvvm.shfl.sync.{mode}.i32("
    code = text(
        f"{LOAD}  %r = call {name}i32 -1, i32 %v, i32 {b}, i32 {c})\n{STORE}", f"{name}i32, i32, i32, i32)"
    )
    x = np.arange(100, 132, dtype=np.int32)
    np.testing.assert_array_equal(run(code, x, (32,)), x[source])


def test_a_shuffle_from_a_lane_that_left_is_refused() -> None:
    name = "i32 @llvm.nvvm.shfl.sync.idx.i32("
    body = f"""
  %low = icmp ult i32 %t, 16
  br i1 %low, label %go, label %end
go:
{LOAD}  %r = call {name}i32 -1, i32 %v, i32 20, i32 31)
{STORE}  br label %end
end:"""
    with pytest.raises(DeviceError, match="shuffles a value from a lane that is not there"):
        run(text(body, f"{name}i32, i32, i32, i32)"), np.zeros(32, np.int32), (32,))


def test_half_a_warp_at_a_barrier_and_half_at_a_shuffle_is_refused() -> None:
    name = "i32 @llvm.nvvm.shfl.sync.idx.i32("
    body = f"""
  %low = icmp ult i32 %t, 16
  br i1 %low, label %one, label %two
one:
  %r = call {name}i32 -1, i32 %t, i32 0, i32 31)
  br label %end
two:
  call void @llvm.nvvm.barrier0()
  br label %end
end:"""
    with pytest.raises(
        DeviceError, match=r"kernel 'k', block \(0, 0, 0\), thread 0: threads of its warp wait"
    ):
        run(
            text(body, f"{name}i32, i32, i32, i32)", "void @llvm.nvvm.barrier0()"),
            np.zeros(32, np.int32),
            (32,),
        )


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_gives_each_lane_its_elements(trans: Any) -> None:
    suffix = ".trans" if trans else ""
    four = "{ i32, i32, i32, i32 }"
    name = f"{four} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{suffix}.b16.p3("
    lines = [
        "  %o = mul i32 %t, 16",
        "  %f = getelementptr i8, ptr %x, i32 %o",
        "  %v = load <4 x i32>, ptr %f, align 16",
        "  %s = getelementptr i8, ptr addrspace(3) @s, i32 %o",
        "  store <4 x i32> %v, ptr addrspace(3) %s, align 16",
        f"  %m = call {four} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{suffix}.b16.p3(ptr addrspace(3) %s)",
    ]
    for i in range(4):
        lines += [
            f"  %r{i} = extractvalue {four} %m, {i}",
            f"  %q{i} = getelementptr [4 x i32], ptr %y, i32 %t, i32 {i}",
            f"  store i32 %r{i}, ptr %q{i}, align 4",
        ]
    code = text(
        "\n".join(lines),
        f"{name}ptr addrspace(3))",
        before="@s = internal addrspace(3) global [512 x i8] undef, align 16",
    )
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    got = run(code, matrices.view(np.int32), (32, 4)).view(np.uint16).reshape(32, 4, 2)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(4):
            pair = matrices[i, 2 * t : 2 * t + 2, g] if trans else matrices[i, g, 2 * t : 2 * t + 2]
            assert got[lane, i].tolist() == pair.tolist()


def test_mma_multiplies_what_lanes_hold() -> None:
    """Fragments by PTX's tables: one register holds elements of one row of A, or of one column of B."""
    for suffix, depth, per_word, element in (
        ("f32.f32", 16, 2, "f16"), ("f32.f32", 8, 2, "f16"), ("bf16", 16, 2, "bf16"), ("bf16", 8, 2, "bf16"),
        ("tf32", 8, 1, "f32"), ("tf32", 4, 1, "f32"), ("s8", 32, 4, "i8"), ("s8", 16, 4, "i8"),
        ("u8", 32, 4, "u8"), ("u8.s8", 32, 4, "u8.i8"),
    ):  # fmt: skip
        draw = np.random.default_rng(depth)
        a, b = draw.integers(0, 100, (16, depth)), draw.integers(-90, 100, (depth, 8))
        if element == "u8":
            b = abs(b)
        c = draw.integers(-100, 100, (16, 8))
        num_a, num_b = depth // (2 * per_word), depth // (4 * per_word)
        words = np.zeros((32, num_a + num_b + 4), np.uint32)
        for lane in range(32):
            g, t = lane // 4, lane % 4
            for r in range(num_a):
                k = per_word * t + 4 * per_word * (r // 2)
                words[lane, r] = packed(a[g + 8 * (r % 2), k : k + per_word], element)
            for r in range(num_b):
                k = per_word * t + 4 * per_word * r
                words[lane, num_a + r] = packed(b[k : k + per_word, g], element)
            for i in range(4):
                value = c[g + 8 * (i // 2), 2 * t + i % 2]
                words[lane, num_a + num_b + i] = packed([value], "i32" if "8" in element else "f32")
        whole = "i32" if "8" in element else "float"
        operand = "<2 x half>" if element == "f16" else "i32"
        types = [operand] * (num_a + num_b) + [whole] * 4
        four = f"{{ {', '.join([whole] * 4)} }}"
        name = f"{four} @llvm.nvvm.mma.m16n8k{depth}.row.col.{suffix}("
        lines = []
        for i, kind in enumerate(types):
            lines += [
                f"  %p{i} = getelementptr [{len(types)} x i32], ptr %x, i32 %t, i32 {i}",
                f"  %v{i} = load {kind}, ptr %p{i}, align 4",
            ]
        lines.append(f"  %m = call {name}{', '.join(f'{kind} %v{i}' for i, kind in enumerate(types))})")
        for i in range(4):
            lines += [
                f"  %r{i} = extractvalue {four} %m, {i}",
                f"  %q{i} = getelementptr [4 x i32], ptr %y, i32 %t, i32 {i}",
                f"  store {whole} %r{i}, ptr %q{i}, align 4",
            ]
        out = run(text("\n".join(lines), f"{name}{', '.join(types)})"), words, (32, 4))
        got = np.zeros((16, 8))
        for lane in range(32):
            for i in range(4):
                got[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = out[lane, i : i + 1].view(
                    np.int32 if whole == "i32" else np.float32
                )[0]
        np.testing.assert_array_equal(got, a @ b + c, err_msg=suffix)


def packed(values: object, element: str) -> np.uint32:
    """Elements in one register."""
    array = np.asarray(values)
    if element == "bf16":
        bits = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits.view(np.uint32)[0]
    kinds = {"f16": np.float16, "f32": np.float32, "i32": np.int32}
    return array.astype(kinds.get(element, np.int8)).view(np.uint32)[0]


def test_tf32_drops_the_last_13_bits_of_its_operands() -> None:
    four = "{ float, float, float, float }"
    name = f"{four} @llvm.nvvm.mma.m16n8k4.row.col.tf32("
    zero = "float 0.0, float 0.0, float 0.0, float 0.0"
    body = f"""
{LOAD}  %m = call {name}i32 %v, i32 %v, i32 1065353216, {zero})
  %f = extractvalue {four} %m, 0
  %r = bitcast float %f to i32
{STORE}"""
    code = text(body, f"{name}i32, i32, i32, float, float, float, float)")
    got = run(code, np.full(32, 1 + 2**-10 + 2**-11, np.float32), (32,))
    np.testing.assert_array_equal(got, np.full(32, 4 * (1 + 2**-10), np.float32))


def test_an_access_that_is_not_aligned_as_it_says_is_refused() -> None:
    body = (
        "  %p = getelementptr i32, ptr %x, i32 1\n  %v = load <2 x i32>, ptr %p, align 8\n"
        "  %r = add i32 0, 0\n" + STORE
    )
    with pytest.raises(DeviceError, match=r"load at byte 4 of 'x' .* is not aligned to 8 bytes"):
        run(text(body), np.zeros(32, np.int32), (32,))


def test_a_store_to_what_is_only_read_is_refused() -> None:
    body = "  %p = getelementptr i32, ptr %x, i32 %t\n  store i32 0, ptr %p, align 4"
    with pytest.raises(
        DeviceError, match=r"store of 4 bytes at byte \d+ of 'x' \(128 bytes which it only reads\)"
    ):
        run(text(body), np.zeros(32, np.int32), (32,))


def test_a_grid_that_no_gpu_takes_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"a grid of \(1, 65536, 1\) blocks, at most .*65535"):
        run(text(""), np.zeros(32, np.int32), (32,), grid=(1, 65536, 1))


def test_shared_memory_ends_where_its_array_does_and_starts_unwritten() -> None:
    before = "@s = internal addrspace(3) global [16 x i32] undef, align 4"
    far = (
        "  %p = getelementptr i32, ptr addrspace(3) @s, i32 {}\n"
        "  %r = load i32, ptr addrspace(3) %p, align 4\n" + STORE
    )
    got = run(text(far.format("3"), before=before), np.zeros(32, np.float32), (32,))
    assert np.isnan(got).all()
    with pytest.raises(DeviceError, match=r"load of 4 bytes at byte 64 of shared memory \(64 bytes\)"):
        run(text(far.format("16"), before=before), np.zeros(32, np.int32), (32,))


@pytest.mark.parametrize(
    ("body", "declared", "message"),
    [
        (
            "  call void @llvm.nvvm.fence.proxy.async()",
            "void @llvm.nvvm.fence.proxy.async()",
            "no llvm.nvvm.fence.proxy",
        ),
        ('  call void asm sideeffect "nanosleep.u32 20;", ""()', "void @f()", "has no asm sideeffect"),
    ],
)
def test_what_the_emulation_lacks_is_named(body: Any, declared: Any, message: Any) -> None:
    with pytest.raises(InternalError, match=message):
        run(text(body, declared), np.zeros(32, np.int32), (32,))


def add_one(
    device: EmulatedDevice, edges: dict[str, tuple[int, ...]], spans: dict[str, tuple[Span, Span]]
) -> list[GraphNode]:
    """Nodes that each add 1 to what they read."""
    return [
        GraphNode(name, Launch("k", (1, 1, 1), (32, 1, 1), (x.address, y.address), (x,), (y,)), edges[name])
        for name, (x, y) in spans.items()
    ]


def test_a_forgotten_edge_of_a_graph_is_found_in_some_order_of_nodes() -> Any:
    device = EmulatedDevice()
    kernels = device.load([text(LOAD + "  %r = add i32 %v, 1\n" + STORE)])
    memory, host = device.allocate(4 * 128), device.pinned(256)
    x, a, b, c = (Span(n, memory.address + 128 * i, 128) for i, n in enumerate("xabc"))
    host.array[:128] = 0
    of, to = Span("in", host.address, 128), Span("out", host.address + 128, 128)
    spans = {"a": (x, a), "b": (x, b), "c": (a, c)}

    def results(edges: dict[str, tuple[int, ...]]) -> list[list[int]]:
        work = [
            GraphNode("in", Copy(of, x)),
            *add_one(device, edges, spans),
            GraphNode("join", Join(), (2, 3)),
            GraphNode("out", Copy(c, to), (4,)),
        ]
        graph = device.graph(work, kernels)
        found = []
        for seed in range(12):
            device.seed = seed
            graph.launch()
            found.append(sorted(set(host.array[128:].view(np.int32).tolist())))
        return found

    assert results({"a": (0,), "b": (0,), "c": (1,)}) == [[2]] * 12
    wrong = results({"a": (0,), "b": (0,), "c": (0,)})
    assert 0 < sum(values != [2] for values in wrong) < 12


def test_a_graph_with_an_edge_backwards_is_refused() -> None:
    device = EmulatedDevice()
    with pytest.raises(UsageError, match="graph node 'a': an edge comes from a node that is not before it"):
        device.graph([GraphNode("a", Join(), (1,)), GraphNode("b", Join())], device.load([text("")]))


@pytest.mark.parametrize(("swizzled", "ways"), [(True, 1), (False, 4)])
def test_bank_conflicts_and_sectors_are_counted(swizzled: Any, ways: Any) -> None:
    product = Product(EmulatedDevice(), rows=32, columns=32, taps=3)
    kernels = product.device.load([product.code(swizzled=swizzled)])
    counts = product.device.graph([GraphNode("p", product.launch())], kernels).counts()["p"]
    assert product.error() < 1e-4
    # Four warps: two halves of each tap are loaded for two operands, in four parts of eight rows each.
    assert counts.least_wavefronts >= 4 * 3 * 2 * 2 * 4
    assert counts.worst_conflict == ways
    assert (counts.num_wavefronts > counts.least_wavefronts) == (not swizzled)
    assert counts.num_sectors == counts.least_sectors
    assert str(counts).startswith("100 % of global sectors used, ")


@pytest.mark.parametrize(
    ("stride", "align", "used", "loads"), [(1, 16, 100, 1), (2, 16, 50, 1), (1, 4, 100, 4)]
)
def test_sectors_count_what_moves_and_is_not_asked_for(
    stride: Any, align: Any, used: Any, loads: Any
) -> None:
    """Loads of 16 bytes; what is not aligned to that becomes four loads, which share their sectors."""
    body = f"""
  %i = mul i32 %t, {4 * stride}
  %p = getelementptr i32, ptr %x, i32 %i
  %v = load <4 x i32>, ptr %p, align {align}"""
    device = EmulatedDevice()
    of = device.allocate(2048)
    span = Span("x", of.address, 2048)
    launch = Launch("k", (1, 1, 1), (32, 1, 1), (of.address, of.address), (span,))
    counts = device.run_kernel(launch, device.load([text(body)]), counted=True)
    assert counts is not None
    assert counts.num_global == loads
    assert 100 * counts.least_sectors // counts.num_sectors == (used if loads == 1 else 25)


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-pc-windows-msvc"])
def test_a_processor_whose_threads_cannot_be_switched_is_refused(
    monkeypatch: pytest.MonkeyPatch, triple: Any
) -> None:
    found = SimpleNamespace(triple=triple)
    monkeypatch.setattr(emulated, "host_instructions", lambda: found)
    with pytest.raises(UsageError) as refused:
        EmulatedDevice().load([text("")])
    assert str(refused.value) == (
        f"the emulated device needs x86-64 under Linux or macOS, and this is {triple}: "
        "give --target cpu, or run on a GPU."
    )


@pytest.mark.parametrize("stages", [2, 3])
def test_races_are_found_whatever_the_order(stages: Any) -> None:
    product = Product(EmulatedDevice(), rows=32, columns=32, taps=5)
    for barrier in (True, False):
        code = product.code(stages=stages, barrier=barrier)
        counts = product.device.run_kernel(product.launch(), product.device.load([code]), counted=True)
        assert counts is not None
        assert bool(counts.races) == (not barrier)
        assert ("RACES at" in str(counts)) == (not barrier)


@pytest.mark.parametrize(
    ("apart", "reads_at", "found"),
    [(32, 0, ()), (31, 0, ("byte 124 of 'y'",)), (32, 32, ("byte 128 of 'y'",))],
)
def test_races_of_blocks_are_found_whatever_the_order(apart: int, reads_at: int, found: Any) -> None:
    """Blocks that write where another writes, or read there, of which the values may be right."""
    body = f"""  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %m = mul i32 %b, {apart}
  %i = add i32 %m, %t
  %p = getelementptr i32, ptr %y, i32 %i
  %o = getelementptr i32, ptr %p, i32 {reads_at}
  %v = load i32, ptr %o, align 4
  store i32 7, ptr %p, align 4"""
    code = text(body, "i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()")
    for seed in (0, 1):
        device = EmulatedDevice(seed=seed)
        y = device.allocate(4 * 96)
        span = Span("y", y.address, y.size_bytes)
        launch = Launch("k", (2, 1, 1), (32, 1, 1), (y.address, y.address), (), (span,))
        counts = device.run_kernel(launch, device.load([code]), counted=True)
        assert counts is not None
        assert counts.block_races[: len(found)] == found
        assert bool(counts.block_races) == bool(found)
        assert ("RACES of blocks at" in str(counts)) == bool(found)


def test_memory_starts_as_nan() -> None:
    device = EmulatedDevice()
    memory = device.allocate(64)
    assert memory.address % 256 == 0
    assert np.isnan(memory.array.view(np.float32)).all()
    assert np.isnan(memory.array.view(np.float16)).all()
