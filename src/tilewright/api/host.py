"""The machine on which a report was made."""

from __future__ import annotations

from dataclasses import field

from tilewright.records import dataclass
from tilewright.results import about


@dataclass(frozen=True, slots=True)
class Host:
    """The machine on which a report was made."""

    cpu: str
    architecture: str
    cores: int = field(metadata=about("Cores that the process may use."))
    threads: int = field(metadata=about("Worker threads by default: cores, or the quota if that is less."))
    quota_cores: float | None
    memory_limit_bytes: int | None

    @classmethod
    def here(cls) -> Host:
        """This machine."""
        from tilewright.hardware.probe import probe_host

        facts = probe_host()
        return cls(
            cpu=facts.cpu_name,
            architecture=facts.architecture,
            cores=facts.num_affinity_cores,
            threads=facts.num_threads,
            quota_cores=facts.quota_cores,
            memory_limit_bytes=facts.memory_limit_bytes,
        )
