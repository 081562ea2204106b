"""Random accelerators: cores with buffers of all sizes, a shared buffer or none, DMA engines or none."""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.property.strategies import Draw

from tilewright.hardware.machine import Level, Machine, Overheads, Share, TensorKind, Unit

KIB = 1 << 10


@st.composite
def accelerators(draw: Draw) -> Machine:
    """A described accelerator of one cluster, or of two that share main memory."""
    num_clusters = draw(st.sampled_from((1, 1, 2)))
    num_cores = draw(st.sampled_from((1, 2, 3, 4, 8, 16)))
    sizes = st.sampled_from((64, 200, KIB, 5_000, 16 * KIB, 64 * KIB, 1280 * KIB, 4 * KIB * KIB))
    rates = st.sampled_from((1e8, 3e9, 2.7e10, 2.56e11))
    levels = [_level(draw, "L1", draw(sizes), draw(rates), per="core", num_instances_per_parent=num_cores)]
    units = [
        Unit(name="MME", kind="matrix", macs_per_cycle={"float16": 256, "float32": 64}, tile=(8, 4)),
        Unit(name="VEC", kind="vector", ops_per_cycle={"float16": 16, "float32": 8}, efficiency=0.5),
    ]
    if draw(st.booleans()):
        size = num_cores * draw(sizes)
        levels.append(_level(draw, "LLB", size, draw(rates), per="cluster"))
        if draw(st.booleans()):
            units.append(
                Unit(name="MTE", kind="mover", level="LLB", between=("L1", "LLB"), bytes_per_s=draw(rates))
            )
    inner = levels[-1].name
    if draw(st.booleans()):
        # One for each core, where these are next to main memory.
        units.append(
            Unit(name="DMA", kind="mover", level=inner, between=(inner, "DDR"), bytes_per_s=draw(rates))
        )
    is_own = draw(st.booleans())
    if len(levels) == 1 and not is_own:
        levels[0] = levels[0].model_copy(update={"num_instances_per_parent": num_cores * num_clusters})
    elif not is_own:
        levels[1] = levels[1].model_copy(update={"num_instances_per_parent": num_clusters})
    main_rate = draw(rates)
    main = Level(
        name="DDR",
        per="cluster" if is_own else "machine",
        num_instances_per_parent=num_clusters if is_own else 1,
        capacity_bytes=draw(st.sampled_from((None, 1 << 30))),
        read_bytes_per_s=main_rate,
        write_bytes_per_s=main_rate / draw(st.sampled_from((1, 4))),
    )
    return Machine(
        name="random",
        levels=(*levels, main),
        units=tuple(units),
        num_clusters=num_clusters,
        num_cores_per_cluster=num_cores,
        clock_hz=1e9,
        overheads=Overheads(
            kernel_launch_ns=draw(st.sampled_from((0, 5_000))), barrier_ns=draw(st.sampled_from((0, 1_000)))
        ),
    )


def _engine(name: str, inner: str, outer: str, rate: float, level: str) -> Unit:
    return Unit(name=name, kind="mover", level=level, between=(inner, outer), bytes_per_s=rate)


def _level(draw: Draw, name: str, capacity_bytes: int, rate: float, **counts: Any) -> Level:
    shares = ()
    if draw(st.booleans()):
        part = draw(st.sampled_from((3, 5, 10)))
        shares = (Share(holds=(TensorKind.WEIGHT,), capacity_bytes=max(1, capacity_bytes // part)),)
    return Level(
        name=name,
        capacity_bytes=capacity_bytes,
        shares=shares,
        read_bytes_per_s=rate,
        write_bytes_per_s=rate,
        **counts,
    )
