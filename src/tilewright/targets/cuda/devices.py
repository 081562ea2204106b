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
    if name == "emulated":
        from tilewright.targets.cuda.emulated.device import EmulatedDevice
        from tilewright.targets.llvm.cache import ObjectCache

        return EmulatedDevice(cache=None if cache_dir is None else ObjectCache(cache_dir))
    from tilewright.targets.cuda.driver import open_gpu

    return open_gpu(ordinal, cache_dir)
