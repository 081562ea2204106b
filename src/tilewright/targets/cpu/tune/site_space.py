"""The forms of a site: a subgraph's space under the site's key, some forms left out; or those of several."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from tilewright.ir.contraction import contractions
from tilewright.ir.derive import nests_of
from tilewright.partition.base import Subgraph
from tilewright.partition.form import Form, KernelForm
from tilewright.records import dataclass
from tilewright.steps import SearchName
from tilewright.targets.cpu.loopnest.choose import TEMPLATE as LOOPS
from tilewright.targets.cpu.lower.layouts import LAYOUT
from tilewright.tuning.space import FormPart, FormSpace

_NUM_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class SiteSpace:
    """See `FormSpace`. `key` is known without the space, so that a stored plan is found without it.

    A `conventional` search has no kernel that computes several complex operators block by block: `complex`
    are the positions of such operators. A `flat` one keeps the kernels, and varies how products are made.
    """

    key: str
    space: FormSpace[Form]
    complex: frozenset[int]
    search: SearchName

    @classmethod
    def of(cls, key: str, space: FormSpace[Form], subgraph: Subgraph, search: SearchName) -> SiteSpace:
        """The space of a subgraph."""
        positions = (p for p, node in enumerate(subgraph.nodes) if contractions(nests_of(node)))
        # Where it begins decides what ratios are of.
        named = f"{key}:conventional" if search == "conventional" else key
        return cls(named, space, frozenset(positions), search)

    def allows(self, form: Form) -> bool:
        """Whether it is one of the forms that are not left out."""
        if self.search == "flat":
            chosen = (choice.template for kernel in form.kernels for _, choice in kernel.choices)
            keeps_others = form == self.space.initial() or not {LOOPS, LAYOUT}.intersection(chosen)
            return keeps_others and self.space.keeps_kernels(form)
        return self.search != "conventional" or not any(map(self._is_intensive, form.kernels))

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
        is_shared = self.search != "conventional"
        return self.space.structure if is_shared else f"{self.space.structure}:conventional"

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


@dataclass(frozen=True, slots=True)
class GroupSpace:
    """The forms of subgraphs that have one time together: a form of each, one behind the other.

    `untuned` are their forms by estimate; those without a space keep theirs.
    """

    key: str
    untuned: tuple[Form, ...]
    spaces: tuple[SiteSpace | None, ...]

    @property
    def structure(self) -> str:
        """Digest of the structures of its members."""
        structures = [space.structure if space is not None else "" for space in self.spaces]
        return hashlib.sha256(repr(structures).encode()).hexdigest()

    def initial(self) -> Form:
        """The estimates' form of each."""
        return joined([form if s is None else s.initial() for form, s in self._members()])

    def starts(self) -> Sequence[Form]:
        """A start of one of them, in turns."""
        first = self.initial()
        forms = (self._changed(first, i, s.starts()) for i, s in enumerate(self.spaces) if s is not None)
        return [form for turn in zip_longest(*forms) for form in turn if form is not None]

    def mutate(self, form: Form, rng: random.Random) -> Form:
        """A form that differs in a decision of one of them."""
        parts = self._parts(form)
        order = [(i, space) for i, space in enumerate(self.spaces) if space is not None]
        rng.shuffle(order)
        for i, space in order:
            (changed,) = self._changed(form, i, [space.mutate(parts[i], rng)])
            if changed != form:
                return changed
        return form

    def cross(self, one: Form, other: Form, rng: random.Random) -> Form | None:
        """Of each of them the form that one of the two has."""
        return joined([rng.choice(pair) for pair in zip(self._parts(one), self._parts(other), strict=True)])

    def kind(self, form: Form) -> Hashable:
        """The kinds of their forms."""
        return tuple(space.kind(part) for space, part in self._varied(form))

    def keeps_kernels(self, form: Form) -> bool:
        """Whether all do."""
        return all(space.keeps_kernels(part) for space, part in self._varied(form))

    def estimate_ns(self, form: Form) -> float:
        """All of them, as if one came after another."""
        return sum(space.estimate_ns(part) for space, part in self._varied(form))

    def features(self, form: Form) -> Mapping[str, float]:
        """Sums of theirs."""
        total: dict[str, float] = {}
        for space, part in self._varied(form):
            for name, value in space.features(part).items():
                total[name] = total.get(name, 0.0) + value
        return total

    def read(self, document: object) -> Form | None:
        """A form that is one of each of them."""
        form = Form.from_json(document)
        if form is None:
            return None
        read: list[Form] = []
        for given, (fixed, space) in zip(self._parts(form), self._members(), strict=True):
            part = (fixed if given == fixed else None) if space is None else space.read(given.to_json())
            if part is None:
                return None
            read.append(part)
        return form if joined(read) == form else None

    def portable(self, form: Form) -> Mapping[str, Any]:
        """Theirs, in order."""
        return {"members": [space.portable(part) for space, part in self._varied(form)]}

    def adapted(self, document: object) -> Form | None:
        """The form of each that is most like that of the same member elsewhere."""
        members = document.get("members") if isinstance(document, Mapping) else None
        spaces = [space for space in self.spaces if space is not None]
        if not isinstance(members, Sequence) or len(members) != len(spaces):
            return None
        given = iter(members)
        forms = [form if s is None else s.adapted(next(given)) for form, s in self._members()]
        adapted = [form for form in forms if form is not None]
        return joined(adapted) if len(adapted) == len(forms) else None

    def split(self) -> tuple[FormPart[Form], ...]:
        """No parts: nothing less than the group has a time."""
        return ()

    def join(self, forms: Sequence[Form]) -> Form:
        """The form of the only part."""
        (form,) = forms
        return form

    def _members(self) -> Sequence[tuple[Form, SiteSpace | None]]:
        return list(zip(self.untuned, self.spaces, strict=True))

    def _parts(self, form: Form) -> list[Form]:
        parts: list[Form] = []
        offset = 0
        for untuned in self.untuned:
            size = sum(len(kernel.nodes) for kernel in untuned.kernels)
            parts.append(member_form(form, offset, size))
            offset += size
        return parts

    def _varied(self, form: Form) -> Sequence[tuple[SiteSpace, Form]]:
        """Those with a space, and their parts of a form."""
        pairs = zip(self.spaces, self._parts(form), strict=True)
        return [(space, part) for space, part in pairs if space is not None]

    def _changed(self, form: Form, member: int, others: Sequence[Form]) -> list[Form]:
        """The form with each of the others for one of its members."""
        parts = self._parts(form)
        return [joined([*parts[:member], other, *parts[member + 1 :]]) for other in others]


def member_form(form: Form, offset: int, size: int) -> Form:
    """The kernels of the nodes from `offset` on, `size` of them, as the form of a subgraph of its own."""
    return Form(
        tuple(
            replace(kernel, nodes=tuple(node - offset for node in kernel.nodes))
            for kernel in form.kernels
            if all(offset <= node < offset + size for node in kernel.nodes)
        )
    )


def joined(forms: Sequence[Form]) -> Form:
    """Forms of several subgraphs as that of all their nodes, one subgraph behind the other."""
    kernels: list[KernelForm] = []
    offset = 0
    for form in forms:
        kernels += [replace(k, nodes=tuple(node + offset for node in k.nodes)) for k in form.kernels]
        offset += sum(len(kernel.nodes) for kernel in form.kernels)
    return Form(tuple(kernels))
