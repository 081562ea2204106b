"""One code for every length of a cache that grows.

A decoder's step reads the keys and values of all earlier positions, and writes them with one more. Compiled
anew for each length, it would compile in every run. Two graphs of the model, for a short past and for the
longest, are walked side by side: where nothing but attention depends on the past, the code of the longest
serves all between them. Its kernels are told how long the past of a run is (see `ir.past`): they read caches
where they lie, and end where these do.

What shapes alone decide, such as the position of a new token or a mask, is computed on the host for each
length by the model's own operators, which is little. Where that must be what the code was compiled with, it
is compared; else it is an input of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.compiler import optimise
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.ir.graph import Graph, Shape, Value
from tilewright.options import Options
from tilewright.passes.canonicalise import canonical_shapes
from tilewright.records import dataclass
from tilewright.specialise.binding import Binding, Key
from tilewright.specialise.cache_match import LEAST_PAST, grown_caches
from tilewright.specialise.graph_pairing import grown_axes, same_bits
from tilewright.specialise.masked import real_axes
from tilewright.specialise.tails import RepeatedStep
from tilewright.target_ref import CPU
from tilewright.targets import host_runner
from tilewright.targets.runs import RunsPast

CompileGrowing = Callable[[Key, Graph], CompiledModel]

MOST_PAST = (4088, 2040, 1016, 504, 248, 120)
"""Places that code is made for, the most that the model allows: tables of positions have an end. A few less
than powers of two, for the new ones."""
MAX_ATTEMPTS = 2
"""Lengths at which one kind of shapes is looked at; if it is not seen to grow then, it never is."""
_SIZES = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (2, 3),
    "ConstantOfShape": (0,),
    "Unsqueeze": (1,),
    "Squeeze": (1,),
    "Split": (1,),
    "TopK": (1,),
    "CumSum": (1,),
}
"""Operands that decide shapes or places, by operator: no run may give them."""
_UNEVEN = frozenset({"Mod", "Div", "Floor", "Ceil", "Round", "BitShift", "If", "Loop", "Scan"})
"""Operators of shape arithmetic by which an extent may follow a length in steps."""


@dataclass(frozen=True, slots=True, eq=False)
class GrownShapes:
    """Runs with a past of `num_past` places, by code for more."""

    num_past: int
    family: _Family
    constants: Mapping[str, Array]

    @property
    def extents(self) -> tuple[int, ...]:
        """The most places that the code is for."""
        return (self.family.most,)

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Outputs in the order of `names`."""
        family, fewer = self.family, self.family.most - self.num_past
        given = dict(self.constants)
        for name, array in feed.items():
            shape = family.padded.get(name)
            if shape is not None:
                given[name] = _padded(array, shape)
            elif array.flags.c_contiguous and array.flags.aligned:
                given[name] = array
            else:
                given[name] = np.require(array, requirements=["C", "A"])
        shapes = {name: (*before, most - fewer, *behind) for name, before, most, behind in family.outputs}
        results = family.executable.run_past(given, shapes, self.num_past)
        return [results[name] for name in names]


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """Shapes that differ in the length of the past alone, from `least` to `most` places, and their code.

    `key` is the set of shapes for the most, of which `axes` of inputs follow the past. `padded` are inputs
    that the code has at the shape for the most. `inputs` and `outputs`, of which only caches are named, come
    with the extents before the axis that follows the past, of that axis for the most, and behind it.
    """

    key: Key
    axes: Mapping[str, int]
    least: int
    most: int
    code: CompiledModel
    executable: RunsPast
    arithmetic: _Arithmetic
    padded: Mapping[str, Shape]
    inputs: Sequence[tuple[str, np.dtype[Any], Shape, int | None, Shape]]
    outputs: Sequence[tuple[str, Shape, int, Shape]]

    def num_past(self, key: Key) -> int | None:
        """The length of the past in a set of shapes; None if the code does not serve it."""
        shapes, most = dict(key), dict(self.key)
        name = next(iter(self.axes))
        if name not in shapes or len(shapes[name]) != len(most[name]):
            return None
        fewer = most[name][self.axes[name]] - shapes[name][self.axes[name]]
        is_known = self.least <= self.most - fewer <= self.most and _moved(self.key, self.axes, -fewer) == key
        return self.most - fewer if is_known else None

    def num_past_of(self, feed: Mapping[str, Array]) -> int | None:
        """The same of arrays; None, too, where they do not fit the model."""
        name = next(iter(self.axes))
        try:
            num_past = feed[name].shape[self.axes[name]]
            if len(feed) != len(self.inputs) or not self.least <= num_past <= self.most:
                return None
            fewer = self.most - num_past
            for name, dtype, before, most, behind in self.inputs:
                array = feed[name]
                shape = before if most is None else (*before, most - fewer, *behind)
                if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
                    return None
        except (KeyError, AttributeError, TypeError, IndexError):
            return None
        return int(num_past)


class _Arithmetic:
    """What shapes alone decide in a model, computed for any length of the past.

    `fed` are names whose values are inputs of the code, at the shapes for the most places; `fixed` those that
    the code was compiled with.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[Shape, frozenset[int]]],
        steps: Sequence[tuple[str, RepeatedStep | None, str, Mapping[str, Any]]],
        known: Mapping[str, Array],
        fed: Mapping[str, Shape],
        fixed: Mapping[str, Array],
    ) -> None:
        self._shapes, self._steps, self._known = shapes, steps, known
        self._fed, self._fixed = fed, fixed
        # Made from the values for the most places, when these have been computed once.
        self._quick: Sequence[tuple[str, Callable[[Mapping[str, Array]], Array]]] | None = None

    def at(self, fewer: int) -> dict[str, Array] | None:
        """What the code is fed for so many places less than the most; None where it was made with others."""
        values = self._values(fewer)
        for name, most in self._fixed.items():
            found = values[name]
            if found.ndim != most.ndim or any(x > y for x, y in zip(found.shape, most.shape, strict=True)):
                return None
            places = tuple(slice(y - x, y) for x, y in zip(found.shape, most.shape, strict=True))
            if not same_bits(np.ascontiguousarray(found), np.ascontiguousarray(most[places])):
                return None
        return {name: _padded(values[name], shape) for name, shape in self._fed.items()}

    def _values(self, fewer: int) -> dict[str, Array]:
        """All that follows from shapes; without the checks of single operators where these were passed."""
        if self._quick is None:
            most = self._checked_values(0)
            self._quick = [
                (result, quick)
                for result, step, _, _ in self._steps
                if step is not None and (quick := step.reference(most)) is not None
            ]
        if len(self._quick) < sum(step is not None for _, step, _, _ in self._steps):
            return self._checked_values(fewer)
        values = dict(self._known)
        for result, step, source, attributes in self._steps:
            if step is None:
                values[result] = self._extents(source, fewer, attributes)
        try:
            with np.errstate(all="ignore"):
                for result, quick in self._quick:
                    values[result] = quick(values)
        except Exception:
            return self._checked_values(fewer)  # which says what is wrong
        return values

    def _checked_values(self, fewer: int) -> dict[str, Array]:
        values = dict(self._known)
        for result, step, source, attributes in self._steps:
            if step is None:
                values[result] = self._extents(source, fewer, attributes)
            else:
                values.update(step.results(values))
        return values

    def _extents(self, source: str, fewer: int, attributes: Mapping[str, Any]) -> Array:
        """The result of `Shape`."""
        shape, axes = self._shapes[source]
        extents = [extent - fewer * (axis in axes) for axis, extent in enumerate(shape)]
        return np.array(extents[slice(attributes.get("start", 0), attributes.get("end"))], np.int64)


class GrowingCaches:
    """Finds inputs that are caches, and what serves their lengths. Compiles for each kind of shapes once."""

    def __init__(
        self, prepared: PreparedModel, binding: Binding, options: Options, compile_graph: CompileGrowing
    ) -> None:
        self._prepared, self._binding, self._options = prepared, binding, options
        self._compile = compile_graph
        self._families: list[_Family] = []
        self._attempts: dict[tuple[Key, tuple[str, ...]], int] = {}
        self._own: set[Key] = set()

    def leave(self, key: Key) -> None:
        """Never serve a set of shapes from now on: it has code of its own, which may add in another order."""
        self._own.add(key)

    def serving(self, key: Key, *, may_compile: bool = True) -> GrownShapes | None:
        """What runs a set of shapes by code for a longer past; None where none is seen to serve it."""
        if key in self._own:
            return None
        for family in self._families:
            found = _serving(family, key)
            if found is not None:
                return found
        if not may_compile or self._options.target != CPU:
            return None
        for axes in self._hypotheses(key):
            blank = (_moved(key, axes, None), tuple(axes))
            if self._attempts.get(blank, 0) >= MAX_ATTEMPTS:
                continue
            self._attempts[blank] = self._attempts.get(blank, 0) + 1
            made = self._new_family(key, axes)
            found = None if made is None else _serving(made, key)
            if made is not None and found is not None:
                # Those made first go first; not closed, for a run may still be using one.
                self._families = [*self._families, made][-self._options.max_shapes :]
                return found
        return None

    def following(self, feed: Mapping[str, Array]) -> GrownShapes | None:
        """What runs a feed by code that is there; what may be wrong with one is not said here."""
        for family in self._families:
            num_past = family.num_past_of(feed)
            if num_past is not None:
                is_own = self._own and _moved(family.key, family.axes, num_past - family.most) in self._own
                return None if is_own else _at(family, num_past)
        return None

    def close(self) -> None:
        """Unload the code."""
        for family in self._families:
            family.code.close()
        self._families.clear()

    def _hypotheses(self, key: Key) -> Iterator[dict[str, int]]:
        """Axes that may follow the past: that of caches, and with those of which both are a part.

        Caches share the name of their open axis. Where an exporter gave each a name of its own, axes of one
        position and extent are taken together; that of batches is none of them.
        """
        shapes = dict(key)
        by_name: dict[object, dict[str, int]] = {}
        by_place: dict[object, dict[str, int]] = {}
        for name, shape in shapes.items():
            declared = self._binding.shape_of(name)
            for axis, dim in enumerate(declared if len(declared) == len(shape) else ()):
                if not isinstance(dim, int):
                    place = (axis, shape[axis], len(shape))
                    by_name.setdefault(dim or place, {})[name] = axis
                    if axis:
                        by_place.setdefault(place, {})[name] = axis
        shared = list(self._shared_axes(shapes, by_name))
        yield from shared or self._shared_axes(shapes, by_place)

    def _shared_axes(
        self, shapes: Mapping[str, Shape], groups: Mapping[object, Mapping[str, int]]
    ) -> Iterator[dict[str, int]]:
        for caches in groups.values():
            first = next(iter(caches))
            num_past = shapes[first][caches[first]]
            ranks = [len(shapes[name]) for name in caches]
            if num_past < LEAST_PAST or len(caches) < 2 or min(ranks) < 3:
                continue
            wholes: dict[str, int] = {}
            for group in groups.values():
                name = next(iter(group))
                if num_past < shapes[name][group[name]] <= num_past + _MAX_NEW and caches.keys().isdisjoint(
                    group
                ):
                    wholes.update(group)
            if wholes:
                yield {**caches, **wholes}
            yield dict(caches)

    def _new_family(self, key: Key, axes: Mapping[str, int]) -> _Family | None:
        """Code for the longest past that the model allows; None where it serves no others."""
        name = next(iter(axes))
        num_past = dict(key)[name][axes[name]]
        longest = list(MOST_PAST)
        while num_past > longest[0]:
            longest = [2 * longest[0] + 8]
        least = _moved(key, axes, LEAST_PAST - num_past)
        for most in longest:
            if most < num_past:
                return None
            larger = _moved(key, axes, most - num_past)
            try:
                short, long = (self._prepared.graph_and_values(dict(k)) for k in (least, larger))
            except TilewrightError:
                continue  # a table of positions ends before, say
            if short is None or long is None:
                return None
            return self._compiled(larger, axes, most, short, long)
        return None

    def _compiled(
        self,
        key: Key,
        axes: Mapping[str, int],
        most: int,
        short: tuple[Graph, dict[str, Value]],
        long: tuple[Graph, dict[str, Value]],
    ) -> _Family | None:
        growth = most - LEAST_PAST
        for graph, _ in (short, long):
            canonical_shapes(graph)  # of masks, whose places would be given as indices
        fed = _differing(short[0], long[0], growth)
        if fed is None:
            return None
        arithmetic = _arithmetic(self._prepared, short[1], long, fed, growth)
        if arithmetic is None:
            return None
        for graph, _ in (short, long):
            _feed(graph, fed)
        larger = optimise(long[0], self._options)[0]
        caches = self._paired(short[0], larger, axes, fed, LEAST_PAST, growth)
        for past in (most // 2, most - _MAX_NEW):
            if caches is None:  # a window may hide keys of a longer past alone
                between = self._prepared.graph_and_values(dict(_moved(key, axes, past - most)))
                if between is not None and len(between[0].nodes) == len(short[0].nodes):
                    canonical_shapes(between[0])
                    _feed(between[0], fed)
                    caches = self._paired(between[0], larger, axes, fed, past, most - past)
        if caches is None:
            return None
        larger.past_axes = caches
        code = self._compile(key, larger)
        executable = code.load()
        if not isinstance(executable, RunsPast) or executable.row_axes != caches:
            code.close()
            return None
        padded = {n: dict(key)[n] for n in axes if n not in caches}
        fed_inputs = [(n, self._binding.dtype_of(n).numpy, *_apart(shape, axes.get(n))) for n, shape in key]
        outputs = [(v.name, *_around(v.shape, caches[v.name])) for v in larger.outputs if v.name in caches]
        return _Family(key, axes, LEAST_PAST, most, code, executable, arithmetic, padded, fed_inputs, outputs)

    def _paired(
        self, short: Graph, larger: Graph, axes: Mapping[str, int], fed: set[str], num_past: int, growth: int
    ) -> dict[str, int] | None:
        """Caches of the graph for the most places, where one for fewer does the same with fewer."""
        smaller = optimise(short, self._options)[0]
        inputs = {name: frozenset({axis}) for name, axis in axes.items()}
        if len(smaller.inputs) != len(larger.inputs):
            return None
        for value, twin in zip(smaller.inputs, larger.inputs, strict=True):
            if value.name in fed:
                inputs[value.name] = grown_axes(value.shape, twin.shape)
        return grown_caches(smaller, larger, inputs, growth, num_past)


_MAX_NEW = 64
"""New places of a run: an input with more is not taken for the past and these."""


def _serving(family: _Family, key: Key) -> GrownShapes | None:
    num_past = family.num_past(key)
    return None if num_past is None else _at(family, num_past)


def _at(family: _Family, num_past: int) -> GrownShapes | None:
    constants = family.arithmetic.at(family.most - num_past)
    return None if constants is None else GrownShapes(num_past, family, constants)


def _around(shape: Shape, axis: int) -> tuple[Shape, int, Shape]:
    """Extents before an axis, its own, and those behind."""
    return shape[:axis], shape[axis], shape[axis + 1 :]


def _apart(shape: Shape, axis: int | None) -> tuple[Shape, int | None, Shape]:
    """The same; all of them first where there is no axis."""
    return (shape, None, ()) if axis is None else _around(shape, axis)


def _moved(key: Key, axes: Mapping[str, int], growth: int | None) -> Key:
    """A set of shapes with so many places more along some axes; without any for None."""

    def changed(name: str, shape: Shape) -> Shape:
        axis = axes.get(name)
        if axis is None:
            return shape
        return (*shape[:axis], 0 if growth is None else shape[axis] + growth, *shape[axis + 1 :])

    return tuple((name, changed(name, shape)) for name, shape in key)


def _padded(array: Array, shape: Shape) -> Array:
    """An array as the last places of a larger one, which is zero before."""
    if array.shape == shape:
        return np.require(array, requirements=["C", "A"])
    larger = np.zeros(shape, array.dtype)
    larger[tuple(slice(y - x, y) for x, y in zip(array.shape, shape, strict=True))] = array
    return larger


def _differing(short: Graph, long: Graph, growth: int) -> set[str] | None:
    """Constants that a run has to be given, as those of a shorter past are not among those of the longest.

    None where the graphs differ in more than constants.
    """
    if len(short.nodes) != len(long.nodes):
        return None
    names: set[str] = set()
    for a, b in zip(short.nodes, long.nodes, strict=True):
        if a.op_type != b.op_type or len(a.inputs) != len(b.inputs):
            return None
        for position, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=True)):
            if x is None or y is None or x.data is None or y.data is None:
                continue
            if position in _SIZES.get(a.op_type, ()):
                continue
            axes = real_axes(x.data, y.data, is_at_end=True)
            if axes is not None and all(y.shape[axis] - x.shape[axis] == growth for axis in axes):
                continue
            if x.name != y.name or len(x.shape) != len(y.shape):
                return None
            names.add(x.name)
    return names


def _arithmetic(
    prepared: PreparedModel,
    short: Mapping[str, Value],
    long: tuple[Graph, Mapping[str, Value]],
    fed: set[str],
    growth: int,
) -> _Arithmetic | None:
    """What computes constants that follow the past; None where that is not seen to hold for all lengths."""
    graph, values = long
    dtypes = {name: value.dtype for name, value in values.items()}
    steps = prepared.steps(dtypes)
    if steps is None:
        return None
    following: dict[str, int] = {}  # names that follow the past, with the step that gives each
    for number, step in enumerate(steps):
        is_constant = all(values[name].data is not None for name in step.outputs if name in values)
        if not is_constant:
            continue
        if step.op_type == "Shape":
            a, b = (v[step.outputs[0]].data for v in (short, values))
            is_following = a is not None and b is not None and not same_bits(a, b)
        else:
            is_following = any(name in following for name in (*step.inputs, *step.captures))
        if is_following:
            if not step.is_standard:
                return None
            if step.op_type in _UNEVEN and not dtypes[step.outputs[0]].is_float:
                return None
            following.update((name, number) for name in step.outputs if name)
    if not fed <= following.keys():
        return None
    read = {
        v.name
        for node in graph.nodes
        for position, v in enumerate(node.inputs)
        if v is not None and v.name in following and position not in _SIZES.get(node.op_type, ())
    }
    needed, numbers = [*read], set[int]()
    while needed:
        number = following[needed.pop()]
        if number not in numbers:
            numbers.add(number)
            needed += [name for name in (*steps[number].inputs, *steps[number].captures) if name in following]
    shapes: dict[str, tuple[Shape, frozenset[int]]] = {}
    made: list[tuple[str, RepeatedStep | None, str, Mapping[str, Any]]] = []
    known: dict[str, Array] = {}
    for number in sorted(numbers):
        step = steps[number]
        if step.op_type == "Shape":
            name = step.inputs[0]
            axes = grown_axes(short[name].shape, values[name].shape)
            if any(values[name].shape[axis] - short[name].shape[axis] != growth for axis in axes):
                return None
            shapes[name] = values[name].shape, axes
            made.append((step.outputs[0], None, name, step.attributes))
            continue
        for name in (*step.inputs, *step.captures):
            data = values[name].data if name and name not in following else None
            if data is not None:
                known[name] = data
        made.append((step.outputs[0], RepeatedStep(step, dtypes, host_runner()), "", {}))
    kept = {name: values[name].data for name in read - fed}
    fixed = {name: data for name, data in kept.items() if data is not None}
    return _Arithmetic(shapes, made, known, {name: values[name].shape for name in sorted(fed)}, fixed)


def _feed(graph: Graph, names: set[str]) -> None:
    """Make inputs of constants, wherever they do not decide a shape."""
    inputs: dict[str, Value] = {}
    for node in graph.nodes:
        operands = list(node.inputs)
        for position, value in enumerate(operands):
            if value is None or value.name not in names or value.data is None:
                continue
            if position in _SIZES.get(node.op_type, ()):
                continue
            if value.name not in inputs:
                inputs[value.name] = Value(value.name, value.dtype, value.shape)
            operands[position] = inputs[value.name]
        if operands != list(node.inputs):
            graph.set_inputs(node, operands)
    for name in sorted(inputs):
        graph.add_input(inputs[name])
