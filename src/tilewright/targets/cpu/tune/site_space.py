"""The forms of the subgraphs of a site: a subgraph's space under the site's key, with some forms left out."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tilewright.ir.contraction import contractions
from tilewright.ir.derive import nests_of
from tilewright.partition.base import Subgraph
from tilewright.partition.form import Form, KernelForm
from tilewright.records import dataclass
from tilewright.tuning.space import FormPart, FormSpace

_NUM_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class SiteSpace:
    """See `FormSpace`. `key` is known without the space, so that a stored plan is found without it.

    Unless it `is_intensive`, no kernel computes several complex operators block by block: `complex` are the
    positions of such operators.
    """

    key: str
    space: FormSpace[Form]
    complex: frozenset[int]
    is_intensive: bool = True

    @classmethod
    def of(cls, key: str, space: FormSpace[Form], subgraph: Subgraph, *, is_intensive: bool) -> SiteSpace:
        """The space of a subgraph."""
        positions = (p for p, node in enumerate(subgraph.nodes) if contractions(nests_of(node)))
        return cls(key if is_intensive else f"{key}:conventional", space, frozenset(positions), is_intensive)

    def allows(self, form: Form) -> bool:
        """Whether it is one of the forms that are not left out."""
        return self.is_intensive or not any(map(self._is_intensive, form.kernels))

    def initial(self) -> Form:
        """The form that estimates chose; a kernel that is left out is cut into its parts."""
        form = self.space.initial()
        if self.allows(form):
            return form
        kernels: list[KernelForm] = []
        for kernel in form.kernels:
            parts = [part.positions for part in self.space.split()] if self._is_intensive(kernel) else []
            within = (tuple(p for p in positions if p in kernel.nodes) for positions in parts)
            kernels += [KernelForm(positions) for positions in within if positions] or [kernel]
        apart = self.space.read(Form(tuple(kernels)).to_json())
        return (
            self.space.join([part.space.initial() for part in self.space.split()]) if apart is None else apart
        )

    def starts(self) -> Sequence[Form]:
        """Those of the space that are not left out."""
        first = self.initial()
        return [form for form in self.space.starts() if form != first and self.allows(form)]

    def mutate(self, form: Form, rng: random.Random) -> Form:
        """A form that differs in a decision, and is not left out."""
        changed = (self.space.mutate(form, rng) for _ in range(_NUM_ATTEMPTS))
        return next((other for other in changed if self.allows(other)), form)

    def cross(self, one: Form, other: Form, rng: random.Random) -> Form | None:
        """A form with some decisions of each, if that is not left out."""
        mixed = self.space.cross(one, other, rng)
        return mixed if mixed is not None and self.allows(mixed) else None

    def kind(self, form: Form) -> Hashable:
        """As the space."""
        return self.space.kind(form)

    def keeps_kernels(self, form: Form) -> bool:
        """As the space."""
        return self.space.keeps_kernels(form)

    def estimate_ns(self, form: Form) -> float:
        """As the space."""
        return self.space.estimate_ns(form)

    def features(self, form: Form) -> Mapping[str, float]:
        """As the space."""
        return self.space.features(form)

    def read(self, document: object) -> Form | None:
        """As the space, but for what is left out."""
        form = self.space.read(document)
        return form if form is not None and self.allows(form) else None

    @property
    def structure(self) -> str:
        """As the space; nothing is shared with a space that leaves forms out."""
        return self.space.structure if self.is_intensive else f"{self.space.structure}:conventional"

    def portable(self, form: Form) -> Mapping[str, Any]:
        """As the space."""
        return self.space.portable(form)

    def adapted(self, document: object) -> Form | None:
        """As the space, but for what is left out."""
        form = self.space.adapted(document)
        return form if form is not None and self.allows(form) else None

    def split(self) -> tuple[FormPart[Form], ...]:
        """As the space: each part has one complex operator at most, so that nothing is left out there."""
        return self.space.split()

    def join(self, forms: Sequence[Form]) -> Form:
        """As the space."""
        return self.space.join(forms)

    def _is_intensive(self, kernel: KernelForm) -> bool:
        return kernel.blocking is not None and len(self.complex.intersection(kernel.nodes)) > 1
