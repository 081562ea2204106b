"""A driver of NVIDIA's that records what it is asked, in the place of the real one."""

from __future__ import annotations

import ctypes
import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.targets.cuda.devices import open_device

CONTEXT, STREAM, FUNCTION = "context", 55, "function"


class Result(enum.IntEnum):
    """Some of the driver's results."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_DEINITIALIZED = 4
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


class FakeDriver(types.ModuleType):
    """Stands for `cuda.bindings.driver`: memory is the host's; calls are recorded; some functions fail."""

    def __init__(self, capability: tuple[int, int] = (9, 0), version: int = 13000, **failing: Result) -> None:
        super().__init__("cuda.bindings.driver")
        self.calls: list[tuple[Any, ...]] = []
        self.failing = failing
        self.capability, self.version = capability, version
        self.kept: list[np.ndarray[Any, Any]] = []
        self.loaded: list[tuple[bytes]] = []
        names = ("CUDA_KERNEL_NODE_PARAMS", "CUDA_MEMCPY3D", "CUkernelNodeAttrValue")
        for name in names:
            setattr(self, name, types.SimpleNamespace)
        attributes = {
            f"CU_DEVICE_ATTRIBUTE_{name}": name
            for name in (
                "COMPUTE_CAPABILITY_MAJOR",
                "COMPUTE_CAPABILITY_MINOR",
                "MULTIPROCESSOR_COUNT",
                "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            )
        }
        self.CUdevice_attribute = types.SimpleNamespace(**attributes)
        self.CUfunction_attribute = types.SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic"
        )
        self.CUlaunchAttributeID = types.SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PRIORITY="priority")
        self.CUmemorytype = types.SimpleNamespace(CU_MEMORYTYPE_UNIFIED="unified")
        self.CUstream = self.CUdeviceptr = int

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name in self.failing:
                return (self.failing[name], *self.answers(name, arguments))
            return (Result.CUDA_SUCCESS, *self.answers(name, arguments))

        return call

    def answers(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        match name:
            case "cuDriverGetVersion":
                return (self.version,)
            case "cuDeviceGetCount":
                return (1,)
            case "cuDeviceGetName":
                return (b"NVIDIA Fake\0" + bytes(200),)
            case "cuDeviceGetAttribute":
                facts = {"MULTIPROCESSOR_COUNT": 132, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448}
                major, minor = self.capability
                facts |= {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
                return (facts[arguments[0]],)
            case "cuDeviceTotalMem":
                return (80 << 30,)
            case "cuMemGetInfo":
                return (1 << 30, 80 << 30)
            case "cuCtxGetStreamPriorityRange":
                return (0, -5)
            case "cuDevicePrimaryCtxRetain":
                return (CONTEXT,)
            case "cuStreamCreate":
                return (STREAM,)
            case "cuModuleGetFunction":
                return (FUNCTION,)
            case "cuMemAlloc" | "cuMemHostAlloc":
                self.kept.append(np.zeros(min(arguments[0], 1 << 28), np.uint8))
                return (self.kept[-1].ctypes.data,)
            case "cuMemcpyHtoD" | "cuMemcpyDtoH":
                ctypes.memmove(*arguments)
                return ()
            case "cuModuleLoadData":
                self.loaded.append((ctypes.string_at(arguments[0]),))
                return self.loaded[-1]
            case "cuCtxPopCurrent" | "cuGraphCreate" | "cuGraphInstantiate" | "cuDeviceGet":
                return (name,)
            case _ if name.startswith("cuGraphAdd"):
                return (f"node {sum(call[0].startswith('cuGraphAdd') for call in self.calls)}",)
        return ()

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of all calls of a function."""
        return [call[1:] for call in self.calls if call[0] == name]


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> FakeDriver:
    """Put it in the place of the real one. A test that opens its GPU ends with `open_device.cache_clear`."""
    open_device.cache_clear()
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    return fake
