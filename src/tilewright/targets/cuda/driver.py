"""A GPU through NVIDIA's driver, by cuda-bindings: a model is one CUDA graph of explicit nodes."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.extras import extra_of
from tilewright.records import dataclass
from tilewright.targets.cuda.device import (
    Copy,
    DeviceError,
    DeviceFacts,
    GraphNode,
    KernelCode,
    Kernels,
    Launch,
)
from tilewright.targets.cuda.dlpack import CUDA
from tilewright.targets.cuda.ptx import OLDEST, GpuIsa, gpu_isa, newest_for, ptx_of
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.text.formatting import format_bytes

OLDEST_CUDA = 12000
"""The first version of CUDA whose drivers, 525 and newer, assemble the PTX of kernels."""
_STATIC_SHARED_BYTES = 48 * 1024
_USE_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_DEFAULT_STREAM = 1  # CU_STREAM_LEGACY

_ELSE = "or give --target 'cuda{device=emulated}', which runs kernels on the processor"
_ADVICE = {
    "CUDA_ERROR_NO_DEVICE": f"it sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES, {_ELSE}",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "its library and its kernel module differ: restart the machine",
    "CUDA_ERROR_STUB_LIBRARY": "libcuda.so.1 is a toolkit's stub: put the driver's first on LD_LIBRARY_PATH",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "it is too old for the kernels: install driver 525 or newer",
    "CUDA_ERROR_INVALID_PTX": "it does not take the kernels: install a newer one",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another program has the GPU alone: end it, or nvidia-smi -c DEFAULT",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU's memory is full: end other programs on it, or give smaller shapes",
    "CUDA_ERROR_DEINITIALIZED": "it has ended with the process: close models before",
}
_EMULATE = "run with device=emulated, which says where"
_LOST = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": f"a kernel left its memory: {_EMULATE}",
    "CUDA_ERROR_MISALIGNED_ADDRESS": f"an access is not aligned: {_EMULATE}",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": f"a kernel has an instruction that the GPU lacks: {_EMULATE}",
    "CUDA_ERROR_LAUNCH_FAILED": f"a kernel failed: {_EMULATE}",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel took longer than the display allows: use a GPU without one",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory has a fault: use another GPU",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "another library of this process has reset the GPU: leave that out",
}
"""After these nothing of the process runs on the GPU any more, and all that it held there is gone."""
_GONE = {*_LOST, "CUDA_ERROR_DEINITIALIZED"}


class DriverError(DeviceError):
    """What the driver reports; `code` is its own name of it."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """The driver's functions, each of which gives its results or raises."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, name: str, *arguments: Any) -> Any:
        """What a function gives: nothing, one result, or a tuple of several.

        Raises:
            DriverError: it reports an error; says what to do.
        """
        error, *results = getattr(self.module, name)(*arguments)
        if int(error):
            code = getattr(error, "name", str(error))
            advice = _ADVICE.get(code) or _LOST.get(code) or f"{name} fails with {code}"
            end = "; start a new process" if code in _LOST else ""
            raise DriverError(f"NVIDIA's driver: {advice}{end}.", code)
        return None if not results else results[0] if len(results) == 1 else tuple(results)


def load_driver() -> Driver:
    """The driver of this machine, initialised.

    Raises:
        UsageError: cuda-bindings is not installed.
        DeviceError: there is no driver, or one that is too old or broken.
    """
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UsageError(
            f"target cuda needs cuda-bindings, which cannot be imported ({error}): "
            f"{extra_of('cuda-bindings').command}, {_ELSE}."
        ) from None
    driver = Driver(module)
    try:
        driver("cuInit", 0)
        version = int(driver("cuDriverGetVersion"))
    except DeviceError:
        raise
    except Exception as error:  # what the wheel raises for a library that it does not find differs by version
        raise DeviceError(
            f"target cuda: no driver of NVIDIA is found ({_first_line(error)}): "
            f"run where there is one, {_ELSE}."
        ) from None
    if version < OLDEST_CUDA:
        raise DeviceError(
            f"NVIDIA's driver knows CUDA {_version(version)}, and kernels need {_version(OLDEST_CUDA)}: "
            "install driver 525 or newer."
        )
    return driver


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is asked of a device."""

    name: str
    isa: GpuIsa
    num_multiprocessors: int
    memory_bytes: int
    shared_bytes: int


class DriverMemory:
    """An allocation on the device, or pinned on the host."""

    def __init__(self, device: CudaDevice, size_bytes: int, *, is_pinned: bool) -> None:
        self.size_bytes = size_bytes
        self._device: CudaDevice | None = device
        self._free = "cuMemFreeHost" if is_pinned else "cuMemFree"
        with device.current():
            try:
                allocate = ("cuMemHostAlloc", size_bytes, 0) if is_pinned else ("cuMemAlloc", size_bytes)
                self._handle = device.driver(*allocate)
            except DriverError as error:
                if error.code != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
                raise DeviceError(_no_memory(device, size_bytes, is_pinned=is_pinned)) from None
        self.address = int(self._handle)

    @property
    def array(self) -> Array:
        """Pinned memory, as bytes."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size_bytes).from_address(self.address))

    def close(self) -> None:
        """Give it back."""
        device, self._device = self._device, None
        if device is not None:
            with device.releasing():
                device.driver(self._free, self._handle)


class DriverKernels:
    """Modules in the driver, and their kernels by name."""

    def __init__(self, device: CudaDevice, modules: Sequence[KernelCode]) -> None:
        self._device = device
        self._modules: list[Any] = []
        self._functions: dict[str, Any] = {}
        images = device.images(modules)
        try:
            with device.current():
                for image in images:
                    data = np.frombuffer(image + b"\0", np.uint8)
                    self._modules.append(device.driver("cuModuleLoadData", data.ctypes.data))
        except BaseException:
            self.close()
            raise

    def function(self, name: str, dynamic_bytes: int) -> Any:
        """A kernel, which may use that much dynamic shared memory."""
        driver = self._device.driver
        if name not in self._functions:
            for module in self._modules:
                error, function = driver.module.cuModuleGetFunction(module, name.encode())
                if not int(error):
                    self._functions[name] = function
                    break
            else:
                raise DeviceError(f"kernel {name!r}: no loaded module has it.")
        if dynamic_bytes > _STATIC_SHARED_BYTES:
            attribute = driver.module.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver("cuFuncSetAttribute", self._functions[name], attribute, dynamic_bytes)
        return self._functions[name]

    def close(self) -> None:
        """Unload them."""
        modules, self._modules = self._modules, []
        with self._device.releasing():
            for module in modules:
                self._device.driver("cuModuleUnload", module)


class DriverGraph:
    """A graph that was instantiated."""

    def __init__(self, device: CudaDevice, nodes: Sequence[GraphNode], kernels: DriverKernels) -> None:
        self._device, self._kernels = device, kernels
        self._nodes = list(nodes)
        self._handles: list[Any] = []
        self._executable: Any = None
        driver = device.driver
        with device.current():
            self._graph = driver("cuGraphCreate", 0)
            try:
                priorities = _priorities(driver, nodes)
                for node in nodes:
                    after = [self._handles[before] for before in node.after]
                    self._handles.append(self._add(node, after))
                    if isinstance(node.work, Launch) and priorities:
                        value = driver.module.CUkernelNodeAttrValue()
                        value.priority = priorities[node.priority]
                        attribute = driver.module.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
                        driver("cuGraphKernelNodeSetAttribute", self._handles[-1], attribute, value)
                flags = _USE_NODE_PRIORITY if priorities else 0
                self._executable = driver("cuGraphInstantiate", self._graph, flags)
            except BaseException:
                self.close()
                raise

    def launch(self, stream: int = 0) -> None:
        """Run it behind what a stream holds."""
        device = self._device
        with device.current():
            device.driver("cuGraphLaunch", self._executable, device.stream(stream))

    def update(self, node: int, work: Launch | Copy) -> None:
        """Another work for a node, of the same kind."""
        old, driver = self._nodes[node], self._device.driver
        if type(old.work) is not type(work):
            raise UsageError(f"graph node {old.name!r}: its work cannot be replaced by one of another kind.")
        with self._device.current():
            if isinstance(work, Launch):
                parameters = self._launch_parameters(work)
                driver("cuGraphExecKernelNodeSetParams", self._executable, self._handles[node], parameters)
            else:
                parameters = _copy_parameters(driver, work)
                context = self._device.context
                driver(
                    "cuGraphExecMemcpyNodeSetParams",
                    self._executable,
                    self._handles[node],
                    parameters,
                    context,
                )
        self._nodes[node] = GraphNode(old.name, work, old.after, old.priority)

    def close(self) -> None:
        """Give it back."""
        executable, self._executable = self._executable, None
        graph, self._graph = self._graph, None
        with self._device.releasing():
            if executable is not None:
                self._device.driver("cuGraphExecDestroy", executable)
            if graph is not None:
                self._device.driver("cuGraphDestroy", graph)

    def _add(self, node: GraphNode, after: list[Any]) -> Any:
        driver, work = self._device.driver, node.work
        start = (self._graph, after, len(after))
        if isinstance(work, Launch):
            return driver("cuGraphAddKernelNode", *start, self._launch_parameters(work))
        if isinstance(work, Copy):
            return driver(
                "cuGraphAddMemcpyNode", *start, _copy_parameters(driver, work), self._device.context
            )
        return driver("cuGraphAddEmptyNode", *start)

    def _launch_parameters(self, launch: Launch) -> Any:
        parameters = self._device.driver.module.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self._kernels.function(launch.kernel, launch.dynamic_bytes)
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = launch.grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.block
        parameters.sharedMemBytes = launch.dynamic_bytes
        parameters.kernelParams = (launch.arguments, (ctypes.c_void_p,) * len(launch.arguments))
        return parameters


class CudaDevice:
    """One GPU. Memory, modules and graphs live in the context that all libraries of the process share."""

    def __init__(self, driver: Driver, ordinal: int = 0, cache: ObjectCache | None = None) -> None:
        self.driver = driver
        self._cache = cache
        self._handle = _handle(driver, ordinal)
        found = self._found()
        self.isa = found.isa
        self.facts = DeviceFacts(
            found.name,
            found.isa.name,
            found.num_multiprocessors,
            found.memory_bytes,
            found.shared_bytes,
            (CUDA, ordinal),
        )
        self.context = driver("cuDevicePrimaryCtxRetain", self._handle)
        with self.current():
            self._stream = driver("cuStreamCreate", _NON_BLOCKING)

    @property
    def own_stream(self) -> int:
        """The handle of its own stream."""
        return int(self._stream)

    def allocate(self, size_bytes: int, name: str = "") -> DriverMemory:
        """Memory of the GPU."""
        return DriverMemory(self, size_bytes, is_pinned=False)

    def pinned(self, size_bytes: int) -> DriverMemory:
        """Memory of the host that the GPU reaches."""
        return DriverMemory(self, size_bytes, is_pinned=True)

    def write(self, address: int, data: Array) -> None:
        """Copy an array to the GPU; it is there when this returns.

        The copy alone may return before: it is on the default stream, for which other streams do not wait.
        """
        with self.current():
            self.driver("cuMemcpyHtoD", address, np.ascontiguousarray(data).ctypes.data, data.nbytes)
        self.synchronise(_DEFAULT_STREAM)

    def read(self, address: int, data: Array) -> None:
        """Copy from the GPU once all that was launched has run."""
        with self.current():
            self.driver("cuCtxSynchronize")
            self.driver("cuMemcpyDtoH", data.ctypes.data, address, data.nbytes)

    def load(self, modules: Sequence[KernelCode]) -> DriverKernels:
        """Load cubins or PTX, made here where a module brings none."""
        return DriverKernels(self, modules)

    def graph(self, nodes: Sequence[GraphNode], kernels: Kernels) -> DriverGraph:
        """Instantiate a graph."""
        assert isinstance(kernels, DriverKernels)
        return DriverGraph(self, nodes, kernels)

    def synchronise(self, stream: int = 0) -> None:
        """Wait for a stream."""
        with self.current():
            self.driver("cuStreamSynchronize", self.stream(stream))

    def close(self) -> None:
        """Give the stream and the context back."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with self.releasing():
                self.driver("cuStreamDestroy", stream)
            self.driver("cuDevicePrimaryCtxRelease", self._handle)

    def stream(self, handle: int) -> Any:
        """A stream of the caller, or the device's own."""
        return self.driver.module.CUstream(handle) if handle else self._stream

    @contextmanager
    def current(self) -> Iterator[None]:
        """This GPU's context for the calling thread, which gets back the one that it had."""
        self.driver("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            self.driver("cuCtxPopCurrent")

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """The same, for what gives something back; where the context is gone, that has happened already."""
        try:
            with self.current():
                yield
        except DriverError as error:
            if error.code not in _GONE:
                raise

    def images(self, modules: Sequence[KernelCode]) -> list[bytes]:
        """What the driver is given of each module: a cubin for this GPU, else the newest PTX, else what its
        text becomes."""
        found = [_image(module.images, self.isa) for module in modules]
        missing = [module.text for module, image in zip(modules, found, strict=True) if image is None]
        made = iter(ptx_of(missing, self.isa, cache=self._cache))
        return [next(made) if image is None else image for image in found]

    def _found(self) -> _Facts:
        driver, handle = self.driver, self._handle
        name, capability = _named(driver, handle)
        isa = newest_for(capability)
        if isa is None:
            major, minor = gpu_isa(OLDEST).capability
            raise DeviceError(
                f"target cuda: {name} has compute capability {capability[0]}.{capability[1]}, and "
                f"kernels need {major}.{minor} (Ampere) or newer: use another GPU, {_ELSE}."
            )
        return _Facts(
            name,
            isa,
            _attribute(driver, handle, "MULTIPROCESSOR_COUNT"),
            int(driver("cuDeviceTotalMem", handle)),
            _attribute(driver, handle, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        )


def gpu_here(ordinal: int = 0) -> tuple[str, tuple[int, int]]:
    """Name and compute capability of a GPU of this machine, of which nothing is used.

    Raises:
        UsageError, DeviceError: there is none; says what to do.
    """
    driver = load_driver()
    return _named(driver, _handle(driver, ordinal))


def _handle(driver: Driver, ordinal: int) -> Any:
    count = int(driver("cuDeviceGetCount"))
    if not 0 <= ordinal < count:
        raise DeviceError(
            f"target cuda: GPU {ordinal} is asked for, and there {'is' if count == 1 else 'are'} {count}, "
            "counted from 0: give another ordinal, or check CUDA_VISIBLE_DEVICES."
        )
    return driver("cuDeviceGet", ordinal)


def _named(driver: Driver, handle: Any) -> tuple[str, tuple[int, int]]:
    raw = driver("cuDeviceGetName", 256, handle)
    major, minor = (_attribute(driver, handle, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return bytes(raw).split(b"\0")[0].decode("utf-8", "replace"), (major, minor)


def _attribute(driver: Driver, handle: Any, key: str) -> int:
    attributes = driver.module.CUdevice_attribute
    return int(driver("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{key}"), handle))


def _image(images: Mapping[str, bytes], isa: GpuIsa) -> bytes | None:
    """The best of what a module was assembled to; None if nothing runs here."""
    if (cubin := images.get(f"{isa.name}.cubin")) is not None:
        return cubin
    fitting = [name for key in images if key.endswith(".ptx") and _fits(name := key[:-4], isa)]
    best = max(fitting, key=lambda name: gpu_isa(name).capability, default=None)
    return None if best is None else images[f"{best}.ptx"]


def _fits(name: str, isa: GpuIsa) -> bool:
    return gpu_isa(name).capability <= isa.capability


def _copy_parameters(driver: Driver, copy: Copy) -> Any:
    """One row of bytes, between addresses of which the driver knows where they lie."""
    module = driver.module
    unified = module.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    parameters = module.CUDA_MEMCPY3D()
    parameters.srcMemoryType = parameters.dstMemoryType = unified
    parameters.srcDevice = module.CUdeviceptr(copy.source.address)
    parameters.dstDevice = module.CUdeviceptr(copy.target.address)
    parameters.srcPitch = parameters.dstPitch = parameters.WidthInBytes = copy.source.size_bytes
    parameters.srcHeight = parameters.dstHeight = parameters.Height = parameters.Depth = 1
    return parameters


def _priorities(driver: Driver, nodes: Sequence[GraphNode]) -> dict[int, int]:
    """The driver's priorities by those of nodes, as far as it has so many; nothing where all are equal."""
    wanted = sorted({node.priority for node in nodes if isinstance(node.work, Launch)})
    if len(wanted) < 2:
        return {}
    least, greatest = (int(value) for value in driver("cuCtxGetStreamPriorityRange"))
    steps = len(wanted) - 1
    return {value: least + round(i * (greatest - least) / steps) for i, value in enumerate(wanted)}


def _no_memory(device: CudaDevice, size_bytes: int, *, is_pinned: bool) -> str:
    if is_pinned:
        return (
            f"no {format_bytes(size_bytes)} of the host's memory can be pinned: raise its limit, or "
            "give smaller shapes."
        )
    free, total = (int(value) for value in device.driver("cuMemGetInfo"))
    return (
        f"{device.facts.name}: {format_bytes(size_bytes)} are needed, {format_bytes(free)} of "
        f"{format_bytes(total)} are free: give smaller shapes, or end other programs on it."
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
