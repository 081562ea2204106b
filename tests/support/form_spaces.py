"""A space of forms whose best is known: a chain of operators, each with a size, cut into kernels somewhere.

The time of a form is a formula; the estimate sees only a part of it, as that of a machine does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.tuning.space import FormPart, FormSpace, FormT, text_of

SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class ChainForm:
    """The size of each operator, and after which of them a kernel ends (all but the last may)."""

    sizes: tuple[int, ...]
    cuts: tuple[bool, ...]

    def to_json(self) -> Mapping[str, list[int]]:
        return {"sizes": list(self.sizes), "cuts": list(self.cuts)}

    def __str__(self) -> str:
        marks = ["|" if cut else "-" for cut in self.cuts] + [""]
        return "".join(f"{size}{mark}" for size, mark in zip(self.sizes, marks, strict=True))


@dataclass(frozen=True)
class ChainSpace:
    """Operators with a best size each; fusing two saves time if their sizes agree, and else costs it."""

    best_sizes: tuple[int, ...]
    name: str = "chain"
    is_blind: bool = False  # the estimate says the same of all forms

    @property
    def key(self) -> str:
        return f"{self.name}:{','.join(map(str, self.best_sizes))}"

    @property
    def structure(self) -> str:
        return f"{self.name}:{len(self.best_sizes)}"

    def portable(self, form: ChainForm) -> Mapping[str, list[int]]:
        return form.to_json()

    def adapted(self, document: object) -> ChainForm | None:
        return self.read(document)

    def initial(self) -> ChainForm:
        return ChainForm((SIZES[0],) * len(self.best_sizes), (True,) * (len(self.best_sizes) - 1))

    def starts(self) -> Sequence[ChainForm]:
        return [ChainForm((size,) * len(self.best_sizes), self.initial().cuts) for size in SIZES[1:3]]

    def mutate(self, form: ChainForm, rng: random.Random) -> ChainForm:
        place = rng.randrange(len(form.sizes) + len(form.cuts))
        if place < len(form.sizes):
            sizes = [*form.sizes]
            sizes[place] = rng.choice([size for size in SIZES if size != sizes[place]])
            return replace(form, sizes=tuple(sizes))
        cuts = [*form.cuts]
        cuts[place - len(form.sizes)] ^= True
        return replace(form, cuts=tuple(cuts))

    def cross(self, one: ChainForm, other: ChainForm, rng: random.Random) -> ChainForm | None:
        if len(one.sizes) < 2:
            return None
        at = rng.randrange(1, len(one.sizes))
        return ChainForm(one.sizes[:at] + other.sizes[at:], one.cuts[:at] + other.cuts[at:])

    def kind(self, form: ChainForm) -> Hashable:
        return form.cuts

    def keeps_kernels(self, form: ChainForm) -> bool:
        return form.cuts == self.initial().cuts

    def estimate_ns(self, form: ChainForm) -> float:
        """As the time, but blind to what fusing does."""
        return 100.0 if self.is_blind else self._sum_ns(form)

    def _sum_ns(self, form: ChainForm) -> float:
        return sum(self._operator_ns(i, size) for i, size in enumerate(form.sizes))

    def time_ns(self, form: ChainForm) -> float:
        """What it takes."""
        fused_ns = sum(
            0.0 if cut else (-20.0 if one == other else 30.0)
            for cut, one, other in zip(form.cuts, form.sizes, form.sizes[1:], strict=False)
        )
        return self._sum_ns(form) + fused_ns

    def features(self, form: ChainForm) -> Mapping[str, float]:
        return {"num_cuts": float(sum(form.cuts)), "size": float(sum(form.sizes))}

    def read(self, document: object) -> ChainForm | None:
        if not isinstance(document, Mapping) or document.keys() != {"sizes", "cuts"}:
            return None
        form = ChainForm(tuple(document["sizes"]), tuple(document["cuts"]))
        return form if len(form.sizes) == len(self.best_sizes) else None

    def split(self) -> tuple[FormPart[ChainForm], ...]:
        return tuple(
            FormPart((place,), replace(self, best_sizes=(best,)))
            for place, best in enumerate(self.best_sizes)
        )

    def join(self, forms: Sequence[ChainForm]) -> ChainForm:
        return ChainForm(tuple(form.sizes[0] for form in forms), self.initial().cuts)

    def _operator_ns(self, place: int, size: int) -> float:
        return 100.0 + 15.0 * abs(SIZES.index(size) - SIZES.index(self.best_sizes[place]))


def check_space(space: FormSpace[FormT], seed: int = 0, steps: int = 20) -> None:
    """What every search relies on."""
    form = space.initial()
    for number in range(steps):
        other = space.mutate(form, random.Random(seed + number))
        assert other == space.mutate(form, random.Random(seed + number))
        assert space.read(json.loads(text_of(other))) == other
        assert space.estimate_ns(other) > 0
        assert space.adapted(json.loads(json.dumps(space.portable(other)))) == other
        assert space.features(other).keys() == space.features(form).keys()
        mixed = space.cross(form, other, random.Random(number))
        assert mixed is None or space.read(json.loads(text_of(mixed))) == mixed
        form = other
    assert space.read({"nonsense": 1}) is None
    assert space.adapted({"nonsense": 1}) is None
    parts = space.split()
    if len(parts) > 1:
        positions = sorted(p for part in parts for p in part.positions)
        assert positions == list(range(len(positions)))
        joined = space.join([part.space.initial() for part in parts])
        assert space.read(json.loads(text_of(joined))) == joined
