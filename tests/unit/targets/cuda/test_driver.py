"""A GPU through NVIDIA's driver, with a driver in its place that records what it is asked."""

# mypy: disable-error-code="attr-defined"

import ctypes
import inspect
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.cuda_driver import FUNCTION, STREAM, FakeDriver, Result, install
from tests.support.cuda_product import Product
from tests.support.models import small_net

import tilewright as tw
from tilewright.api import doctor
from tilewright.errors import UsageError
from tilewright.targets.cuda import dlpack
from tilewright.targets.cuda.device import Copy, DeviceError, GraphNode, Join, KernelCode, Span
from tilewright.targets.cuda.devices import open_device
from tilewright.targets.cuda.driver import CudaDevice, load_driver


def test_a_graph_is_made_of_explicit_nodes_with_the_edges_given(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeDriver())
    device = CudaDevice(load_driver())
    assert (device.facts.name, device.facts.isa, device.facts.num_multiprocessors) == (
        "NVIDIA Fake",
        "sm_90",
        132,
    )
    product = Product(device, rows=50, columns=64, taps=1)
    launch = product.launch()
    kernels = device.load([product.code()])
    (text,) = fake.named("cuModuleLoadData")
    assert ".target sm_90" in ctypes.string_at(text[0]).decode() or text
    host = device.pinned(512)
    nodes = [
        GraphNode("in", Copy(Span("host", host.address, 512), Span("x", launch.arguments[0], 512))),
        GraphNode("one", launch, (0,), priority=1),
        GraphNode("two", replace(launch, dynamic_bytes=64 * 1024), (0,), priority=9),
        GraphNode("join", Join(), (1, 2)),
    ]
    graph = device.graph(nodes, kernels)
    copied, first, second, joined = (call for call in fake.calls if call[0].startswith("cuGraphAdd"))
    assert copied[:4] == ("cuGraphAddMemcpyNode", "cuGraphCreate", [], 0)
    row = copied[4]
    assert (row.srcDevice, row.dstDevice, row.WidthInBytes, row.Height) == (
        host.address,
        launch.arguments[0],
        512,
        1,
    )
    assert first[:4] == ("cuGraphAddKernelNode", "cuGraphCreate", ["node 1"], 1)
    parameters = first[4]
    assert (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ) == launch.grid
    assert (parameters.blockDimX, parameters.sharedMemBytes) == (128, 0)
    assert parameters.kernelParams == (launch.arguments, (ctypes.c_void_p,) * 3)
    assert second[4].sharedMemBytes == 64 * 1024
    assert fake.named("cuFuncSetAttribute") == [(FUNCTION, "dynamic", 64 * 1024)]
    assert joined[:3] == ("cuGraphAddEmptyNode", "cuGraphCreate", ["node 2", "node 3"])
    assert [(n, v.priority) for n, _, v in fake.named("cuGraphKernelNodeSetAttribute")] == [
        ("node 2", 0),
        ("node 3", -5),
    ]
    graph.launch()
    graph.launch(stream=77)
    device.synchronise(77)
    assert fake.named("cuGraphLaunch") == [("cuGraphInstantiate", STREAM), ("cuGraphInstantiate", 77)]
    assert fake.named("cuStreamSynchronize")[-1] == (77,)
    graph.update(1, replace(launch, arguments=(1, 2, 3)))
    ((_, node, changed),) = fake.named("cuGraphExecKernelNodeSetParams")
    assert (node, changed.kernelParams[0]) == ("node 2", (1, 2, 3))
    with pytest.raises(UsageError, match="graph node 'one': its work cannot be replaced"):
        graph.update(1, nodes[0].work)  # type: ignore[arg-type]
    for held in (graph, kernels, host, device):
        held.close()
        held.close()
    for name in (
        "cuGraphExecDestroy",
        "cuGraphDestroy",
        "cuModuleUnload",
        "cuMemFreeHost",
        "cuStreamDestroy",
    ):
        assert len(fake.named(name)) == 1, name
    assert len(fake.named("cuCtxPushCurrent")) == len(fake.named("cuCtxPopCurrent"))


def test_what_is_written_is_there_before_another_stream_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from memory that is not pinned may return before it has ended, on the default stream."""
    fake = install(monkeypatch, FakeDriver())
    device = CudaDevice(load_driver())
    memory = device.allocate(8)
    device.write(memory.address, np.ones(8, np.uint8))
    names = [call[0] for call in fake.calls]
    default_stream = 1
    assert fake.named("cuStreamSynchronize") == [(default_stream,)]
    assert names.index("cuMemcpyHtoD") < names.index("cuStreamSynchronize")


class OfTheGpu:
    """An array of another library, in memory that the driver calls its own."""

    def __init__(self, array: np.ndarray[Any, Any], number: int = 0) -> None:
        self.array, self.number, self.streams = array, number, list[int]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.number

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


def test_arrays_of_other_libraries_are_made_ready_on_the_stream_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, FakeDriver())
    device = CudaDevice(load_driver())
    array = np.zeros((4, 8), np.float32)
    given = OfTheGpu(array)
    for stream in (device.own_stream, 77):
        found = dlpack.taken("x", given, (4, 8), array.dtype, device, stream)
        assert found.address == array.ctypes.data
    assert given.streams == [STREAM, 77]
    with pytest.raises(UsageError, match=r"'x' is on device \(2, 1\) of DLPack, and .* on \(2, 0\)"):
        dlpack.taken("x", OfTheGpu(array, 1), (4, 8), array.dtype, device, 77)


def test_images_that_fit_are_loaded_instead_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver((8, 9)))
    device = CudaDevice(load_driver())
    images = {"sm_90.cubin": b"a", "sm_80.ptx": b"b", "sm_86.ptx": b"c", "sm_90.ptx": b"d"}
    assert device.images([KernelCode("", images)]) == [b"c"]
    assert device.images([KernelCode("", images | {"sm_89.cubin": b"e"})]) == [b"e"]


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (
            FakeDriver(cuInit=Result.CUDA_ERROR_NO_DEVICE),
            "NVIDIA's driver: it sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES, or give --target "
            "'cuda{device=emulated}', which runs kernels on the processor.",
        ),
        (
            FakeDriver(cuInit=Result.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
            "NVIDIA's driver: its library and its kernel module differ: restart the machine.",
        ),
        (
            FakeDriver(cuDeviceGet=Result.CUDA_ERROR_STUB_LIBRARY),
            "NVIDIA's driver: libcuda.so.1 is a toolkit's stub: put the driver's first on LD_LIBRARY_PATH.",
        ),
        (
            FakeDriver(version=11080),
            "NVIDIA's driver knows CUDA 11.8, and kernels need 12.0: install driver 525 or newer.",
        ),
        (
            FakeDriver((7, 5)),
            "target cuda: NVIDIA Fake has compute capability 7.5, and kernels need 8.0 (Ampere) or newer: "
            "use another GPU, or give --target 'cuda{device=emulated}', which runs kernels on the processor.",
        ),
    ],
)
def test_a_driver_or_gpu_that_cannot_be_used_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, fake: Any, message: Any
) -> None:
    install(monkeypatch, fake)
    with pytest.raises(DeviceError) as refused:
        CudaDevice(load_driver())
    assert str(refused.value) == message


def test_no_driver_and_no_wheel_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeDriver())

    def missing(flags: int) -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1\nmore")

    fake.cuInit = missing
    with pytest.raises(
        DeviceError, match=r"no driver of NVIDIA is found \(Failed to dlopen libcuda.so.1\): run where"
    ):
        load_driver()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(
        UsageError, match=r"needs cuda-bindings, .*: pip install 'tilewright\[cuda\]', or give"
    ):
        load_driver()


def test_a_gpu_that_is_full_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver(cuMemAlloc=Result.CUDA_ERROR_OUT_OF_MEMORY))
    with pytest.raises(DeviceError) as full:
        CudaDevice(load_driver()).allocate(2 << 30)
    assert str(full.value) == (
        "NVIDIA Fake: 2.0 GiB are needed, 1.0 GiB of 80.0 GiB are free: give smaller shapes, or "
        "end other programs on it."
    )


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            Result.CUDA_ERROR_ILLEGAL_ADDRESS,
            "NVIDIA's driver: a kernel left its memory: run with device=emulated, which says where; "
            "start a new process.",
        ),
        (
            Result.CUDA_ERROR_CONTEXT_IS_DESTROYED,
            "NVIDIA's driver: another library of this process has reset the GPU: leave that out; "
            "start a new process.",
        ),
    ],
)
def test_a_lost_context_is_one_line_and_what_was_held_is_given_back_in_silence(
    monkeypatch: pytest.MonkeyPatch, code: Result, line: str
) -> None:
    fake = install(monkeypatch, FakeDriver())
    made = tw.compile(small_net(8, 6), target="cuda", no_cache=True)
    feed = {"image": np.zeros((1, 3, 6, 6), np.float32)}
    made.run(None, feed)
    running = ["cuGraphLaunch", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "cuMemFreeHost"]
    ending = ["cuModuleUnload", "cuGraphExecDestroy", "cuGraphDestroy", "cuStreamDestroy"]
    fake.failing |= dict.fromkeys(running + ending, code)
    for _ in range(2):
        with pytest.raises(DeviceError) as told:
            made.run(None, feed)
        assert str(told.value) == line
    made.close()
    open_device.cache_clear()


def test_a_gpu_that_is_full_while_a_model_is_loaded_gives_back_what_it_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = install(monkeypatch, FakeDriver(cuGraphInstantiate=Result.CUDA_ERROR_OUT_OF_MEMORY))
    with pytest.raises(DeviceError, match="the GPU's memory is full: end other programs on it, or give sm"):
        tw.compile(small_net(8, 6), target="cuda", no_cache=True).load()
    assert len(fake.named("cuMemAlloc")) == len(fake.named("cuMemFree"))
    assert len(fake.named("cuModuleLoadData")) == len(fake.named("cuModuleUnload"))
    open_device.cache_clear()


def test_doctor_names_the_gpu_or_says_what_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "13.5")
    install(monkeypatch, FakeDriver())
    (check,) = doctor._gpu()
    assert (check.ok, check.found) == (True, "NVIDIA Fake, code for sm_90, 80.0 GiB")
    install(monkeypatch, FakeDriver((7, 0)))
    (check,) = doctor._gpu()
    assert check.ok
    assert "compute capability 7.0, and kernels need 8.0 (Ampere) or newer" in check.advice
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    assert doctor._gpu() == []


def test_the_wheel_has_every_function_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings", reason="needs cuda-bindings: pip install 'tilewright[cuda]'")
    import cuda.bindings.driver as real

    source = inspect.getsource(sys.modules["tilewright.targets.cuda.driver"])
    fake = FakeDriver()
    for name in sorted({word for word in source.split('"') if word.startswith("cu") and word[2:3].isupper()}):
        assert callable(getattr(real, name)), name
    for name in (
        "CUDA_KERNEL_NODE_PARAMS",
        "CUDA_MEMCPY3D",
        "CUkernelNodeAttrValue",
        "CUstream",
        "CUdeviceptr",
    ):
        assert hasattr(real, name)
    for kind in ("CUdevice_attribute", "CUfunction_attribute", "CUlaunchAttributeID", "CUmemorytype"):
        for key in vars(getattr(fake, kind)):
            assert hasattr(getattr(real, kind), key), key
