"""A compiled model whose shapes are open: runs at any shapes that it is fed."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright import families
from tilewright.arguments import as_array, checked
from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts
from tilewright.errors import BudgetExceeded, InternalError, ModelClosed, UsageError
from tilewright.extents import fixed_shape
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Shape
from tilewright.ir.rows import rows_of
from tilewright.specialise.binding import Binding, Key
from tilewright.specialise.divided import DividedRows, PaddedShapes, placed
from tilewright.specialise.facts import Specialisation, Specialisations
from tilewright.specialise.growing import GrowingCaches, GrownShapes
from tilewright.specialise.parts import Compile, CompiledPart, is_light
from tilewright.specialise.shape_reuse import ShapeReuse, with_extent
from tilewright.specialise.store import Entry, Store
from tilewright.specialise.tails import Tail
from tilewright.targets import host_runner
from tilewright.targets.base import Executable
from tilewright.targets.runs import HostRunner
from tilewright.text.formatting import format_shape

if TYPE_CHECKING:
    from tilewright.artifact.stored_rows import StoredRows

ByOthers = DividedRows | PaddedShapes | GrownShapes
"""What runs by the code for other shapes."""
Shapes = Mapping[str, Shape]
Purpose = Literal["ahead", "run", "at"]
"""Why something is made: before any run, for one, or because a caller asked for the model at these shapes."""
CompilePart = Callable[[Graph, Shapes, float | None, bool], CompiledModel]
"""A graph at shapes of its inputs, within so many seconds; and whether it is the whole model."""


@dataclass(frozen=True, slots=True, eq=False)
class _Recent:
    """What the last run used, which the next one mostly does: shapes and types of the inputs, and what runs;
    its code alone, where that is the whole model."""

    names: Sequence[str]
    shapes: list[Shape]
    dtypes: list[np.dtype[Any]]
    entry: Entry[CompiledPart | ByOthers]
    executable: Executable | None

    def has_kinds_of(self, feed: Mapping[str, Array]) -> bool:
        """Whether it is for a feed; what may be wrong with one is not said here."""
        try:
            return (
                len(feed) == len(self.shapes)
                and [feed[name].shape for name in self.names] == self.shapes
                and (
                    self.executable is not None  # which looks at types itself
                    or (
                        all(isinstance(feed[name], np.ndarray) for name in self.names)
                        and [feed[name].dtype for name in self.names] == self.dtypes
                    )
                )
            )
        except (KeyError, AttributeError, TypeError):
            return False


class OpenCompiledModel(CompiledModel):
    """Runs a model at the shapes that it is fed. See `CompiledModel`.

    A set of shapes that was not seen before is compiled in the run that brings it, while runs at others go
    on; at most `max_shapes` of the options are kept. With `frozen_shapes` such a run is an error, and what
    follows a shape that data decide is interpreted. The options' timeout is for all compilations together.

    What a compilation is asked about - its program, schedule, memory - is known at given shapes: see `at`.
    """

    def __init__(
        self, prepared: PreparedModel, binding: Binding, facts: CompiledFacts, compile_part: CompilePart
    ) -> None:
        shapes = facts.options.shapes
        fixed = {n: numbers for n in shapes if (numbers := fixed_shape(shapes[n])) is not None}

        def refuse(*_: object) -> Any:
            prepared.graph(fixed)  # says which dimensions are open, or where data decide a shape
            raise InternalError(f"{prepared.label} is open, and has a graph.")

        super().__init__(facts, Body(refuse, refuse, refuse))
        self._prepared = prepared
        self._binding = binding
        self._compile_part = compile_part
        limit = facts.options.max_shapes
        # What runs by code for other shapes holds none: any number of lengths may come, none is proven twice.
        self._store: Store[tuple[Key, bool], CompiledPart | ByOthers] = Store(
            limit, is_light=lambda value: isinstance(value, ByOthers)
        )
        # Shapes that data decide may differ in every run: they must not push out those of the inputs.
        self._following: Store[tuple[PreparedModel, Key], CompiledPart] = Store(limit, warns=False)
        self._shape_reuse = ShapeReuse(
            prepared, binding, self._ahead, self._compile_masked, is_frozen=facts.options.frozen_shapes
        )
        self._growing = GrowingCaches(prepared, binding, facts.options, self._compile_masked)
        self._tails: weakref.WeakKeyDictionary[PreparedModel, Tail] = weakref.WeakKeyDictionary()
        self._recent: _Recent | None = None
        runner = families.BODIES.get("compiled").runner
        self._run_operator: HostRunner = runner(facts.options)
        self._run_decided: HostRunner = runner(facts.options, is_data_decided=True)

    def run_numbers(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[np.ndarray[Any, Any]]:
        """As `CompiledModel.run_numbers`.

        Raises:
            UsageError: inputs that do not fit the model, or shapes that are not prepared where they are
                frozen.
            ModelClosed: it was closed.
            BudgetExceeded: the options' time is used up, or the system does not give the memory.
            UnsupportedOp: an operator that cannot run at these shapes.
        """
        recent = self._recent
        if recent is not None and recent.has_kinds_of(feed):
            recent.entry.num_uses += 1
            if recent.executable is not None:
                results = recent.executable.run(feed)
                return [results[name] for name in names]
            return self._run(names, recent.entry.value, feed)
        grown = self._growing.following(feed)
        if grown is not None:
            return grown.run(names, feed)
        arrays = self._arrays(feed)
        return self._run(names, self._part(arrays), arrays)

    def run_into(
        self, feed: Mapping[str, np.ndarray[Any, Any]], into: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """As `CompiledModel.run_into`. Where no code is for these shapes alone, outputs are copied.

        Raises:
            UsageError: as `run`, or an array that does not fit its output at these shapes.
        """
        self._require_tensors()
        arrays = self._arrays(feed)
        part = self._part(arrays)
        if isinstance(part, CompiledPart) and part.whole is not None:
            return part.whole.run_into(arrays, into)
        results = dict(zip(self._output_names, self._run(self._output_names, part, arrays), strict=True))
        return placed(results, arrays, into)

    @checked
    def at(self, shapes: Mapping[str, Sequence[int]]) -> CompiledModel:
        """The model at shapes of its inputs, compiled if it was not yet: to save it, to ask what was done.

        Raises:
            UsageError: dimensions stay open, or the shapes do not fit the model.
            UnsupportedOp: data decide a shape in it.
        """
        given = self._prepared.input_shapes({name: tuple(shape) for name, shape in shapes.items()})
        key = self._binding.key_of(given)
        part = self._store.get((key, False))
        if part is None or isinstance(part, ByOthers):
            part = self._obtained(key, "at")
        if isinstance(part, ByOthers) or part.whole is None:
            self._prepared.graph(given)  # says which operator it is
            raise UsageError(f"{self._prepared.label}: nothing of it is computed at these shapes.")
        return part.whole

    def prepare(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile for all sets of shapes that the options name.

        Raises:
            UsageError: there are more than are kept; or none, and shapes are frozen.
        """
        prepared, is_inside = self._binding.prepared(self._store.limit), self._binding.is_inside
        # Ends of ranges first, then the largest extents: their code may serve somewhat smaller ones.
        keys = [k for k in prepared if not is_inside(k)] + [k for k in reversed(prepared) if is_inside(k)]
        if self.options.frozen_shapes and not keys:
            raise UsageError(
                f"frozen-shapes: no shapes are prepared, for {self._binding.describe()} leaves some open "
                "(?): name extents for each, as in --shapes x:1..8x128|256."
            )
        for number, key in enumerate(keys):
            if progress is not None:
                progress("shapes", number, len(keys))
            self._obtained(key, "ahead")
            part = self._store.get((key, False))
            if self.options.frozen_shapes and isinstance(part, CompiledPart):
                self._shape_reuse.prepare(key, part)
        if self.options.frozen_shapes:
            self._shape_reuse.prove_ahead(keys)

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an artifact with the code for all shapes that it was compiled for: see `SavedShapes`.

        Raises:
            UsageError: it was compiled for none, or the file cannot be written.
            UnsupportedOp: data decide a shape in it.
        """
        from tilewright.artifact.write import save_shapes

        made = {key: entry.value for (key, _), entry in self._store.items()}
        parts = {key: part for key, part in made.items() if isinstance(part, CompiledPart)}
        if not parts:
            self._body.program()  # says what is open
        keys, contents = sorted(parts), []
        for key in keys:
            whole = parts[key].whole
            contents.append(self.at(dict(key)).content() if whole is None else whole.content())
        saved = save_shapes(Path(path), self.facts, contents, self._rows_beside(keys))
        self._prepared.let_go()
        return saved

    def _rows_beside(self, keys: Sequence[Key]) -> list[StoredRows]:
        """What the code for some sets of shapes runs of those that were prepared beside them."""
        from tilewright.artifact.stored_rows import StoredRows

        beside: dict[tuple[int, tuple[str, ...]], list[DividedRows]] = {}
        for (key, _), entry in self._store.items():
            rows = entry.value
            if entry.is_ahead and isinstance(rows, DividedRows):
                number = keys.index(with_extent(key, rows.input_axes, *rows.extents))
                beside.setdefault((number, tuple(rows.input_axes)), []).append(rows)
        return [
            StoredRows(
                number, tuple(sorted(r.num_rows for r in held)), held[0].input_axes, held[0].output_axes
            )
            for (number, _), held in sorted(beside.items(), key=lambda item: item[0])
        ]

    @property
    def specialisations(self) -> Specialisations:
        """What it was compiled for, and how long that took."""
        own = [_specialisation(key, entry) for (key, _), entry in self._store.items()]
        following = [
            _specialisation(key, entry, follows_data=True) for (_, key), entry in self._following.items()
        ]
        stores = (self._store, self._following)
        return Specialisations(
            (*own, *following),
            sum(store.num_made for store in stores),
            sum(store.num_dropped for store in stores),
            sum(store.seconds for store in stores),
            self._store.limit,
        )

    @property
    def num_threads(self) -> int:
        """Threads that share the work of a run."""
        return resolve_threads(self.options.num_threads)

    @property
    def is_final(self) -> bool:
        """Whether runs at all shapes so far are by compiled code."""
        return all(compiled.is_final for compiled in self._compiled_parts())

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until runs at all shapes so far are by compiled code, at most so long; whether they are.

        Raises:
            UnsupportedOp, BudgetExceeded, UsageError: what compiling failed of.
            ModelClosed: it was closed.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for compiled in self._compiled_parts():
            compiled.finish(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        return self.is_final

    def _compiled_parts(self) -> list[CompiledModel]:
        parts = (*self._store.values(), *self._following.values())
        found = (part.compiled for part in parts if isinstance(part, CompiledPart))
        return [compiled for compiled in found if compiled is not None]

    def close(self) -> None:
        """Unload the code of all shapes. See `CompiledModel.close`."""
        super().close()
        # What another thread makes meanwhile finds the stores closed, and is not kept.
        for part in (*self._store.close(), *self._following.close()):
            if isinstance(part, CompiledPart) and part.compiled is not None:
                part.compiled.close()
        self._shape_reuse.close()
        self._growing.close()
        self._recent = None
        self._tails.clear()
        self._run_operator = self._run_decided = host_runner()

    def _arrays(self, feed: Mapping[str, Any]) -> dict[str, Array]:
        if self._is_closed:
            raise ModelClosed
        if not isinstance(feed, Mapping):
            raise UsageError(f"feed is a {type(feed).__name__}: give a dict from input name to array.")
        return {name: as_array(name, value) for name, value in feed.items() if value is not None}

    def _run(
        self, names: Sequence[str], part: CompiledPart | ByOthers, feed: Mapping[str, Array]
    ) -> list[Array]:
        if isinstance(part, ByOthers):
            return part.run(names, feed)
        if part.whole is not None:
            return part.whole.run_numbers(names, feed)
        values = self._results(part, feed)
        return [values[name] for name in names]

    def _part(self, feed: Mapping[str, Array]) -> CompiledPart | ByOthers:
        key = self._binding.key(feed)
        part = self._obtained(key)
        entry = self._store.entry((key, False))
        if entry is not None:
            # Not locked, as it is no more than the shapes and code that most runs have in common.
            whole = part.whole if isinstance(part, CompiledPart) else None
            executable = None if whole is None else whole.load()
            names, shapes = [n for n, _ in key], [s for _, s in key]
            self._recent = _Recent(names, shapes, [feed[n].dtype for n in names], entry, executable)
            if self._is_closed:  # since the part was obtained
                self._recent = None
                raise ModelClosed
        return part

    def _results(self, part: CompiledPart, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Values by name, the outputs among them: part after part, each at the shapes that arrive."""
        self._prepared.require_unchanged()  # operators of the host read constants where they are
        values = part.values(feed)
        outputs = {name: values[name] for name in self._output_names if name in values}
        if part.rest is not None:
            rest = part.rest
            feed = {name: values[name] for name in rest.inputs}
            tail = self._tails.get(rest)
            is_known = tail is not None and tail.takes(feed)
            found = tail.values(feed) if tail is not None and is_known else self._followed_values(rest, feed)
            outputs.update({name: found[name] for name in rest.outputs})
        return outputs

    def _followed_values(self, model: PreparedModel, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of a model behind a shape that data decide, part after part at the shapes that arrive.

        Where all of them are little work, the next run goes node by node.
        """
        rest: PreparedModel | None = model
        arrays, outputs, dtypes = feed, dict[str, Array](), dict[str, DType]()
        is_light = True
        while rest is not None:
            part = self._followed(rest, tuple((name, array.shape) for name, array in arrays.items()))
            values = part.values(arrays)
            outputs.update({name: values[name] for name in rest.outputs if name in values})
            dtypes.update(part.dtypes)
            is_light = is_light and part.compiled is None
            rest = part.rest
            arrays = {} if rest is None else {name: values[name] for name in rest.inputs}
        tail = Tail.of(model, dtypes, feed, self._run_decided) if is_light else None
        if tail is not None:
            self._tails[model] = tail
        return outputs

    def _obtained(self, key: Key, purpose: Purpose = "run") -> CompiledPart | ByOthers:
        """What runs at shapes of the model's inputs."""
        return self._store.obtain(
            (key, purpose == "at"), lambda: self._made_once(key, purpose), is_ahead=purpose == "ahead"
        )

    def _made_once(self, key: Key, purpose: Purpose) -> CompiledPart | ByOthers:
        try:
            return self._made(key, purpose)
        finally:
            self._prepared.let_go()

    def _made(self, key: Key, purpose: Purpose) -> CompiledPart | ByOthers:
        if purpose == "ahead" and self._binding.is_inside(key):
            beside = self._growing.serving(key) or self._shape_reuse.rows_of_larger(key)
            if beside is not None:
                return beside
        if purpose == "run":
            may_compile = not self.options.frozen_shapes
            found = self._growing.serving(key, may_compile=may_compile) or self._shape_reuse.serving(key)
            if found is not None:
                return found
            if self.options.frozen_shapes:
                raise UsageError(
                    f"shapes are frozen, and {_shown(key)} is not prepared: add it to shapes, which are "
                    f"{self._binding.describe()}, or do without frozen-shapes."
                )
        if purpose != "at":
            self._growing.leave(key)
        started = time.perf_counter()
        division = self._prepared.divided(dict(key))
        if purpose == "ahead" and division.is_static:
            self._mark_rows(division.graph)
        compile_part = self._limited(key, started, is_whole=division.is_static)
        return CompiledPart.of(
            division, dict(key), compile_part, keeps=purpose == "ahead", run_operator=self._run_operator
        )

    def _mark_rows(self, graph: Graph) -> None:
        """Say which axes of the inputs hold rows, of those with several extents: the code serves fewer."""
        for axes in self._binding.listed_axes().values():
            graph.row_axes = axes
            if rows_of(graph) is not None:
                return
        graph.row_axes = {}

    def _followed(self, prepared: PreparedModel, key: Key) -> CompiledPart:
        """What runs behind a shape that data decide."""

        def make() -> CompiledPart:
            started = time.perf_counter()
            division = prepared.divided(dict(key))
            interprets = self.options.frozen_shapes or is_light(division.graph)
            return CompiledPart.of(
                division,
                dict(key),
                self._limited(key, started),
                interprets=interprets,
                run_operator=self._run_decided,
            )

        return self._following.obtain((prepared, key), make)

    def _limited(self, key: Key, started: float, *, is_whole: bool = False) -> Compile:
        """What compiles a part that was begun then, in the time that is left."""

        def compile_part(graph: Graph, shapes: Shapes) -> CompiledModel:
            return self._compile_part(graph, shapes, self._time_left(key, started), is_whole)

        return compile_part

    def _ahead(self) -> dict[Key, CompiledPart]:
        """What was compiled before any run, and is all of the model."""
        made = {key: entry.value for (key, _), entry in self._store.items() if entry.is_ahead}
        return {
            key: part
            for key, part in made.items()
            if isinstance(part, CompiledPart) and part.whole is not None
        }

    def _compile_masked(self, key: Key, graph: Graph) -> CompiledModel:
        """The code of a graph that has masks beside its inputs."""
        return self._limited(key, time.perf_counter())(graph, {v.name: v.shape for v in graph.inputs})

    def _time_left(self, key: Key, started: float) -> float | None:
        """Seconds that a compilation may still take."""
        if self.options.timeout_s is None:
            return None
        spent_s = self._store.seconds + self._following.seconds + time.perf_counter() - started
        left_s = self.options.timeout_s - spent_s
        if left_s <= 0:
            raise BudgetExceeded(
                f"{_shown(key)}: compiling for other shapes took the {self.options.timeout_s:g} s that all "
                "may take; raise timeout, or prepare fewer shapes."
            )
        return left_s


def _specialisation(
    key: Key, entry: Entry[CompiledPart] | Entry[CompiledPart | ByOthers], *, follows_data: bool = False
) -> Specialisation:
    part = entry.value
    compiled = part.compiled if isinstance(part, CompiledPart) else None
    return Specialisation(
        shapes=dict(key),
        seconds=entry.seconds,
        num_runs=entry.num_uses,
        num_kernels=0 if compiled is None else len(compiled.kernels),
        is_ahead=entry.is_ahead,
        follows_data=follows_data,
        by_code_for=part.extents if isinstance(part, ByOthers) else (),
    )


def _shown(key: Key) -> str:
    return ",".join(f"{name}:{format_shape(shape)}" for name, shape in key)
