"""The devices there are, each opened once in a process."""

from __future__ import annotations

import functools
from typing import Literal

from tilewright.targets.cuda.device import Device

DeviceName = Literal["driver", "emulated"]


@functools.cache
def open_device(name: DeviceName, cache_dir: str | None, ordinal: int = 0) -> Device:
    """The device of a name, of GPUs that with this number; code is kept in a directory, or nowhere.

    Raises:
        DeviceError: there is none; says what to do.
    """
    from tilewright.targets.llvm.cache import ObjectCache

    cache = None if cache_dir is None else ObjectCache(cache_dir)
    if name == "emulated":
        from tilewright.targets.cuda.emulated.device import EmulatedDevice

        return EmulatedDevice(cache=cache)
    from tilewright.targets.cuda.driver import CudaDevice, load_driver

    return CudaDevice(load_driver(), ordinal, cache)
