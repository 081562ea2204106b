"""Documents on what was measured: benchmarks, profiles, comparisons."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tilewright.cli.schemas.base import ModelReport, Part


class MachineState(Part):
    """What else the machine did, before and after."""

    cpu_name: str
    num_cores: int
    governor: str | None
    load_before: float | None
    load_after: float | None
    busy_share_before: float | None = Field(description="Of the cores, by other programs.")
    busy_share_after: float | None
    core_latency_before_ns: float | None
    core_latency_after_ns: float | None
    steal_share: float | None


class Timing(Part):
    """Milliseconds: the median of each round, and all runs."""

    samples_ms: list[float]
    runs_ms: list[float]


class Ratio(Part):
    """Its time over the first contestant's, round by round, with a 95 % interval of the median."""

    median: float
    low: float
    high: float
    verdict: Literal["faster", "slower", "tie", "can't tell"] = Field(description="Of the first contestant.")


class Contestant(Part):
    """One engine; `timing` is null and `error` says why if it did not run."""

    label: str
    engine: str
    version: str
    load_s: float
    first_run_s: float
    peak_bytes: int
    timing: Timing | None
    max_error: float | None = Field(description="Against float64, over the output's largest value.")
    error: str | None
    median_ms: float | None
    percentiles_ms: dict[str, float] | None
    ratio: Ratio | None


class Comparison(Part):
    """Engines measured in turns."""

    model: str
    num_threads: int
    num_rounds: int
    machine: MachineState
    contestants: list[Contestant]


class BoundShares(Part):
    """Shares of the first model's time by what binds it; `limits` is the sum of the machine's limits."""

    compute: float
    memory: float
    overhead: float
    host: float
    limits: float


class BenchReport(ModelReport):
    """Latency of engines measured in turns."""

    kind: Literal["bench"]
    model: str
    num_threads: int
    num_rounds: int
    machine: MachineState
    contestants: list[Contestant]
    options: dict[str, Any]
    bound: BoundShares | None = Field(description="Absent without advice.")
    advice: list[str]


class ProfiledKernel(Part):
    """One step in the running model; `of_limit` is its speed as a share of what the machine would allow.

    Of operators on the host only times are known.
    """

    id: str
    template: str
    nodes: list[str]
    operators: list[str]
    median_ns: float
    low_ns: float
    high_ns: float
    share: float
    flop: int = Field(description="All operations, by weight; `gflop_per_s` is their rate.")
    product_flop: int = Field(description="Those of products, two for each.")
    constant_bytes: int
    activation_bytes: int
    limit_ns: float
    bound: Literal["compute", "memory", "overhead", "host"]
    notes: list[str]
    gflop_per_s: float
    of_limit: float


class Limits(Part):
    """What this machine did at best."""

    num_threads: int
    fma_flop_per_s: float
    tile_flop_per_s: float | None
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    small_bytes_per_s: float = Field(description="Of what fits `small_bytes`: the smallest caches.")
    small_bytes: int
    constant_bytes_per_s: float = Field(description="Where this model's constants stay between runs.")


class ProfileReport(ModelReport):
    """Where the time of a run goes."""

    kind: Literal["profile"]
    kernels: list[ProfiledKernel]
    run_ns: float
    between_ns: float
    limit_ns: float
    num_runs: int
    limits: Limits
    operator_share: dict[str, float]
    bound_share: dict[str, float]
    verdict: str
    trace: str | None


class Difference(Part):
    """How one tensor differs; `max_difference` is null where shapes or the places of NaN differ."""

    name: str
    shape: list[int]
    max_difference: float | None
    scale: float
    allowed: float
    ok: bool


class CompareReport(ModelReport):
    """Differences between two ways to run a model."""

    kind: Literal["compare"]
    a: str
    b: str
    ok: bool
    rtol: float
    atol: float
    outputs: list[Difference]
    layers: list[Difference] | None
    changed_kernels: list[str] | None


class DemoReport(ModelReport):
    """The figures of the demonstration."""

    kind: Literal["demo"]
    network: str
    compile_s: float
    num_kernels: int
    median_ms: float
    max_error: float
    comparison: Comparison
