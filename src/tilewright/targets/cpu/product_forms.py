"""Forms that differ in how products are made, and in nothing else: the cut into kernels stays as it is."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from tilewright.options import Accuracy
from tilewright.partition.form import Form
from tilewright.planning.choice import Choice
from tilewright.program import Program
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.lowered import KernelLaunch, LoweredModel
from tilewright.targets.cpu.select import product_candidates
from tilewright.targets.cpu.template import Context
from tilewright.tuning.space import Part


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of a kernel of the form, and the ways to make it, that of the estimates first."""

    kernel: int
    signature: str
    ways: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProductForms:
    """See `FormSpace`. An estimate is the mean rank of its choices: templates rank, and say no time."""

    key: str
    untuned: Form
    products: tuple[_Product, ...]

    def initial(self) -> Form:
        """The form as it is."""
        return self.untuned

    def starts(self) -> Sequence[Form]:
        """Each product another way, the best of each first."""
        turns = zip_longest(
            *([self._with(self.untuned, p, way) for way in p.ways[1:]] for p in self.products)
        )
        return [form for turn in turns for form in turn if form is not None]

    def mutate(self, form: Form, rng: random.Random) -> Form:
        """One product is made another way."""
        product = rng.choice(self.products)
        others = [way for way in product.ways if way != self._way(form, product)]
        return self._with(form, product, rng.choice(others))

    def cross(self, one: Form, other: Form, rng: random.Random) -> Form | None:
        """Of each product the way that one of them has."""
        mixed = one
        for product in self.products:
            if rng.random() < 0.5:
                mixed = self._with(mixed, product, self._way(other, product))
        return mixed

    def estimate_ns(self, form: Form) -> float:
        """One and more: how far its choices are from the best of the estimates."""
        ranks = [product.ways.index(self._way(form, product)) for product in self.products]
        return 1.0 + sum(ranks) / len(ranks)

    def features(self, form: Form) -> Mapping[str, float]:
        """Nothing that could be learned from."""
        return {}

    def read(self, document: object) -> Form | None:
        """A form with the same kernels, and known ways to make its products."""
        form = Form.from_json(document)
        if form is None or self._stripped(form) != self._stripped(self.untuned):
            return None
        known = {(p.kernel, p.signature): p.ways for p in self.products}
        for number, kernel in enumerate(form.kernels):
            for signature, choice in kernel.choices:
                if choice not in known.get((number, signature), ()):
                    return None
        return form

    def split(self) -> tuple[Part[Form], ...]:
        """It stays whole: parts would need other kernels."""
        return ()

    def join(self, forms: Sequence[Form]) -> Form:
        """The form of its only part."""
        (form,) = forms
        return form

    def _way(self, form: Form, product: _Product) -> Choice:
        chosen = dict(form.kernels[product.kernel].choices).get(product.signature)
        return product.ways[0] if chosen is None else chosen

    def _with(self, form: Form, product: _Product, way: Choice) -> Form:
        kernels = list(form.kernels)
        chosen = dict(kernels[product.kernel].choices)
        chosen.pop(product.signature, None)
        if way != product.ways[0]:
            chosen[product.signature] = way
        kernels[product.kernel] = replace(kernels[product.kernel], choices=tuple(sorted(chosen.items())))
        return Form(tuple(kernels))

    def _stripped(self, form: Form) -> Form:
        return Form(tuple(replace(kernel, choices=()) for kernel in form.kernels))


def product_forms(program: Program, plain: LoweredModel, isa: Isa) -> dict[int, ProductForms]:
    """The spaces of a program's subgraphs, by number, of those whose products can be made in several ways."""
    launches: dict[int, list[KernelLaunch]] = {}
    for launch in plain.launches:
        if launch.nodes:
            launches.setdefault(program.partition.subgraph_of(launch.nodes[0]).id, []).append(launch)
    spaces: dict[int, ProductForms] = {}
    for number, members in launches.items():
        subgraph = program.partition.subgraphs[number]
        form = subgraph.form or Form.whole(len(subgraph.nodes))
        kernel_of = {subgraph.nodes[p]: n for p, n in form.kernel_numbers().items()}
        products: dict[tuple[int, str], _Product] = {}
        for launch in members:
            signature = launch.kernel.signature
            if signature:
                ways = _ways(plain, signature, isa, program.options.accuracy)
                kernel = kernel_of[launch.nodes[0]]
                if len(ways) > 1:
                    products[kernel, signature] = _Product(kernel, signature, ways)
        if products:
            facts = (form, [(m.kernel.signature, m.kernel.symbol, m.kernel.num_chunks) for m in members])
            key = hashlib.sha256(repr(facts).encode()).hexdigest()
            spaces[number] = ProductForms(key, form, tuple(products.values()))
    return spaces


def _ways(plain: LoweredModel, signature: str, isa: Isa, accuracy: Accuracy) -> tuple[Choice, ...]:
    product = plain.products[signature]
    return product_candidates(product.nest, Context(isa, product.layouts, accuracy, product.constants))
