"""Artifacts, opened: a model for given shapes, or one for several sets of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.arguments import as_array, checked, missing_input
from tilewright.arrays import Array
from tilewright.artifact import StoredModel, StoredShapes, read_artifact
from tilewright.artifact.stored_rows import most_rows
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body
from tilewright.errors import ModelClosed, UsageError
from tilewright.ir.graph import Shape
from tilewright.options import OpenShapes, Options, sets_text, shapes_text
from tilewright.specialise.divided import DividedRows, placed
from tilewright.system.forks import ForkSafeLock


def open_compiled(
    path: Path, options: Options | None = None, asked: Collection[str] | None = None
) -> CompiledModel:
    """The model that an artifact holds, opened as the options say. See `tilewright.artifact`.

    Raises:
        UsageError, ArtifactCorrupt, BudgetExceeded: as `read_artifact`.
    """
    stored = read_artifact(path, options, asked)
    if isinstance(stored, StoredModel):
        return _opened(stored)
    opened = SavedShapes(path, stored)
    if options is not None and options.frozen_shapes:
        opened.prepare()
    return opened


def _opened(stored: StoredModel) -> CompiledModel:
    return CompiledModel(stored.facts, stored.body, remarks=stored.remarks, num_threads=stored.num_threads)


class SavedShapes(CompiledModel):
    """A model that was compiled for several sets of shapes, and saved. See `CompiledModel`.

    The code for a set is loaded in the first run that brings these shapes, or at once with `frozen_shapes`.
    Others are an error, for the file does not hold the model that they could be compiled from, but for those
    of fewer rows of which it says that code for more runs them.
    """

    def __init__(self, path: Path, stored: StoredShapes) -> None:
        self.sets = stored.sets
        """Shapes of the inputs, of each set."""

        def refuse(*_: object) -> Any:
            raise UsageError(
                f"{path}: holds code for {len(self.sets)} sets of shapes: name one with --shapes, as in "
                f"{sets_text(self.sets)}."
            )

        super().__init__(
            stored.facts, Body(refuse, refuse, refuse), remarks=stored.remarks, num_threads=stored.num_threads
        )
        self._path = path
        self._read = stored.read
        self._names = tuple(info.name for info in stored.facts.inputs)
        self._numbers = {self._key(shapes): number for number, shapes in enumerate(stored.sets)}
        self._rows = stored.rows
        self._fewer = {
            self._key(held.shapes_at(extent, stored.sets[held.of_set])): (held, extent)
            for held in stored.rows
            for extent in held.extents
        }
        self._ready: dict[tuple[Shape, ...], CompiledModel | DividedRows] = {}
        self._opened: dict[int, CompiledModel] = {}
        self._opening = ForkSafeLock()

    @property
    def sets_beside(self) -> tuple[OpenShapes, ...]:
        """Shapes that run by the code for sets with more rows."""
        return tuple(
            held.shapes_at("|".join(map(str, held.extents)), self.sets[held.of_set]) for held in self._rows
        )

    def run_numbers(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """As `CompiledModel.run_numbers`.

        Raises:
            UsageError: inputs that do not fit, or shapes that it has no code for.
            ModelClosed: it was closed.
            BudgetExceeded: the system does not give the memory, or the options do not allow it.
        """
        serving = self._serving(feed)
        if isinstance(serving, CompiledModel):
            return serving.run_numbers(names, feed)
        return serving.run(names, feed)

    def run_into(self, feed: Mapping[str, Array], into: Mapping[str, Array]) -> list[Array]:
        """As `CompiledModel.run_into`, at the shapes of the feed."""
        self._require_tensors()
        serving = self._serving(feed)
        if isinstance(serving, CompiledModel):
            return serving.run_into(feed, into)
        arrays = {name: as_array(name, value) for name, value in feed.items()}
        results = dict(zip(self._output_names, serving.run(self._output_names, arrays), strict=True))
        return placed(results, arrays, into)

    @property
    def num_threads(self) -> int:
        """Threads that share the work of a run: as many in all sets, whose code is loaded for the first."""
        return self._at(self.sets[0]).num_threads

    def prepare(self) -> None:
        """Load the code for all sets, or generate it where the file's may not run, so that no run has to."""
        for shapes in self.sets:
            self._at(shapes).load()

    @checked
    def at(self, shapes: Mapping[str, Sequence[int]]) -> CompiledModel:
        """The model at one of its sets of shapes.

        Raises:
            UsageError: it is none of them.
        """
        return self._at({name: tuple(shapes.get(name, ())) for name in self._names})

    def close(self) -> None:
        """Unload the code for all shapes. See `CompiledModel.close`."""
        super().close()
        for model in list(self._opened.values()):
            model.close()
        self._opened.clear()
        self._ready.clear()

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact again.

        Raises:
            UsageError: the file cannot be written.
        """
        from tilewright.artifact.write import save_shapes

        contents = [self._at(shapes).content() for shapes in self.sets]
        return save_shapes(Path(path), self.facts, contents, self._rows)

    def _serving(self, feed: Mapping[str, Array]) -> CompiledModel | DividedRows:
        """What runs the shapes of a feed."""
        try:
            found = self._ready.get(tuple([feed[name].shape for name in self._names]))
        except (KeyError, AttributeError, TypeError):  # no arrays, or not all of them
            found = None
        if found is None:
            shapes = self._shapes_of(feed)
            found = self._rows_at(shapes) or self._at(shapes)
            self._ready[self._key(shapes)] = found
            self._refuse_if_closed()
        return found

    def _rows_at(self, shapes: Mapping[str, Shape]) -> DividedRows | None:
        """What runs shapes that have no code of their own, but fewer rows than others that have."""
        key = self._key(shapes)
        if key not in self._fewer:
            return None
        rows, extent = self._fewer[key]
        model = self._at(self.sets[rows.of_set])
        most = most_rows(rows, self.sets)
        assert most is not None
        return DividedRows(extent, (most,), {most: model}, rows.inputs, rows.outputs)

    def _at(self, shapes: Mapping[str, Shape]) -> CompiledModel:
        self._refuse_if_closed()
        number = self._numbers.get(self._key(shapes))
        if number is None:
            raise UsageError(
                f"{self._path}: holds no code for {shapes_text(shapes)}, only for {sets_text(self.sets)}; "
                "compile the model for these shapes, too."
            )
        model = self._opened.get(number)
        if model is None:
            with self._opening:
                model = self._opened.get(number)
                if model is None:
                    model = self._opened[number] = _opened(self._read(number))
                    self.remarks += model.remarks
                    if self._is_closed:  # while this was opened
                        model.close()
                    self._refuse_if_closed()
        return model

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            self._opened.clear()
            self._ready.clear()
            raise ModelClosed

    def _key(self, shapes: Mapping[str, Shape]) -> tuple[Shape, ...]:
        return tuple(shapes[name] for name in self._names)

    def _shapes_of(self, feed: Mapping[str, Any]) -> dict[str, Shape]:
        if not isinstance(feed, Mapping):
            raise UsageError(f"feed is a {type(feed).__name__}: give a dict from input name to array.")
        shapes = {}
        for name in self._names:
            value = feed.get(name)
            if value is None:
                raise missing_input(name, self._names, feed)
            shape = getattr(value, "shape", None)
            shapes[name] = tuple(shape) if isinstance(shape, tuple) else as_array(name, value).shape
        return shapes
