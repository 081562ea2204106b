"""What holds a model back, as shares of its measured time: arithmetic, memory, overheads, the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.benchmark.profile import Profile
from tilewright.results import Result, about


@dataclass(frozen=True, slots=True)
class BoundSplit(Result):
    """Shares of the time of a call, which add up to 1.

    `compute` and `memory` are spent in kernels that are near enough to the machine's limits to be bound by
    them; `overhead` is spent in kernels far from both, between kernels, and in the call itself; `host` in
    operators in Python. `limits` is the share that would be left if every kernel reached its limit.
    """

    compute: float
    memory: float
    overhead: float
    host: float
    limits: float = field(metadata=about("Left if every kernel reached its limit."))

    @classmethod
    def of(cls, profile: Profile, measured_ns: float) -> BoundSplit:
        """Of a call that takes `measured_ns`; the profile says what happens in it."""
        total_ns = max(measured_ns, profile.run_ns)
        scale = profile.run_ns / total_ns if total_ns else 0.0
        share = {bound: scale * part for bound, part in profile.bound_share.items()}
        named = {bound: share.get(bound, 0.0) for bound in ("compute", "memory", "host")}
        return cls(
            **named,
            overhead=max(0.0, 1.0 - sum(named.values())),
            limits=profile.limit_ns / total_ns if total_ns else 0.0,
        )

    @property
    def advice(self) -> str:
        """One line: what most of the time is bound by, the split, and what helps."""
        shares = {
            "arithmetic": self.compute,
            "memory": self.memory,
            "overheads": self.overhead,
            "operators on the host": self.host,
        }
        most = max(shares, key=lambda name: shares[name])
        split = ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items() if share >= 0.005)
        return (
            f"bound by {most}: {split}; this machine's limits add up to {100 * self.limits:.0f} % of the "
            f"time. {_LEVERS[most]}; `tilewright profile` shows every kernel."
        )


_LEVERS = {
    "arithmetic": "More --threads help if the machine has them",
    "memory": "A larger batch uses the parameters more often",
    "overheads": "A larger batch spreads them",
    "operators on the host": "Other operators in their place would help most",
}
