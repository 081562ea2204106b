"""Mutation testing of checkers and bounds: `python -m tests.mutation.run [MODULE...] [--sample N]`.

The tests of a module are collected once, in this process, and each mutant is run in a fork of it: the code of
the module's functions is replaced by the mutant's, and the tests that reach the mutated statement run until
one fails. A module is a path within `src/tilewright`, as `schedule/check.py`; without any, all of `MODULES`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import os
import random
import re
import resource
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tilewright"
MODULES = (
    "**/check.py",
    "**/check_*.py",
    "**/bound.py",
    "**/bounds.py",
    "**/lower_bound.py",
    "partition/quotient.py",
    "ir/verify.py",
    "targets/validate.py",
)
NOT_CHECKERS = ("cli/check_verb.py", "ir/ops/check_shape.py", "benchmark/bounds.py")
"""A verb, an operator, and shares of a measured time."""

TEST_FOLDERS = ("unit", "property", "conformance", "golden")
EQUIVALENT = Path(__file__).with_name("equivalent.diff")
RESULTS = ROOT / "build" / "mutation"
LONGEST_TEST_S = 4.0
"""CPU of a test, traced, that is too long to judge mutants, s."""

LONGEST_TESTS_S = 6.0
"""CPU of all tests that judge one mutant, traced, s: the quickest and deadliest are taken."""

CONSTANTS = (int, float, str, tuple, frozenset)
LARGEST_MEMORY_BYTES = 6 << 30


@dataclass
class Score:
    """What became of a module's mutants: of all or of a sample, `total`."""

    module: str
    of: int = 0
    total: int = 0
    killed: int = 0
    equivalent: int = 0
    survivors: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def share(self) -> float:
        """Of all mutants those that are killed or argued to be equivalent."""
        return (self.killed + self.equivalent) / self.total if self.total else 1.0


def modules() -> list[str]:
    """Checkers and bounds, by the rule of their names."""
    found = {str(path.relative_to(SOURCE)) for rule in MODULES for path in SOURCE.glob(rule)}
    return sorted(found.difference(NOT_CHECKERS))


def dotted(module: str) -> str:
    """The name that imports a module."""
    return "tilewright." + module.removesuffix(".py").replace("/", ".")


def tests_of(module: str) -> list[str]:
    """Test files that import what is public in a module or in its importers; planted faults first."""
    concerned, known = {module}, {each: (SOURCE / each).read_text() for each in modules()}
    while True:
        more = {
            each
            for each, text in known.items()
            if each not in concerned and any(f"from {dotted(one)} import" in text for one in concerned)
        }
        if not more:
            break
        concerned |= more
    names = {
        name
        for one in concerned
        for name in re.findall(r"^(?:def|class) ([A-Za-z]\w*)", known[one], re.MULTILINE)
    }
    found: dict[str, int] = {}
    for folder in TEST_FOLDERS:
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
            text = path.read_text()
            if number := sum(len(re.findall(rf"\b{name}\b", text)) for name in names & _imported(text)):
                found[str(path)] = number
    return sorted(found, key=lambda path: ("faults" not in path, -found[path]))


def _imported(text: str) -> set[str]:
    """Names that a test file imports from tilewright or from what tests share."""
    froms = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in froms for alias in node.names}


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Reasons by module, function, and the lines before and after, as `equivalent.diff` has them."""
    found: dict[tuple[str, str, str, str], str] = {}
    module = function = was = now = ""
    for line in EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else ():
        match line[:2]:
            case "##":
                module = line[2:].strip()
            case "@ ":
                function = line[2:]
            case "- ":
                was = line[2:]
            case "+ ":
                now = line[2:]
                found[module, function, was, now] = ""
            case "= ":
                for key, reason in found.items():
                    if not reason:
                        found[key] = line[2:]
    return found


class Judge:
    """A pytest plugin: instead of running the tests once, judges each mutant of a module by them."""

    def __init__(self, module: str, chosen: Sequence[Mutant], first_run_s: float) -> None:
        self.module = module
        self.live = import_module(dotted(module))
        self.chosen = chosen
        self.first_run_s = first_run_s
        self.score = Score(module)

    def pytest_collection(self) -> None:
        """A failing example need not be made small."""
        from hypothesis import Phase, settings  # after its own plugin

        settings.register_profile(
            "first", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None
        )
        settings.load_profile("first")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Which test runs which lines, and then the mutants one by one."""
        if session.testsfailed:
            raise session.Failed("tests could not be collected")
        if not self.chosen:
            return True
        lines, seconds = self._reached(session)
        known = equivalents()
        for mutant, killer, num_tests in self._judged(session, lines, seconds):
            self.score.total += 1
            key = (self.module, mutant.function, mutant.was, mutant.now)
            if killer:
                self.score.killed += 1
                if key in known:
                    self.score.unused.append(str(mutant))
            elif key in known:
                self.score.equivalent += 1
            else:
                self.score.survivors.append(str(mutant))
                print(f"{mutant}\n  {num_tests} tests", flush=True)
        return True

    def _reached(self, session: pytest.Session) -> tuple[dict[int, set[int]], dict[int, float]]:
        """Lines of the module that each test runs, and its CPU seconds; of those that pass and are quick."""
        lines: dict[int, set[int]] = {}
        seconds: dict[int, float] = {}
        begun = time.process_time()
        for number, item in enumerate(session.items):
            reached: set[int] = set()
            start = time.process_time()
            if start - begun > self.first_run_s:
                print(
                    f"{self.module}: {len(session.items) - number} of {len(session.items)} tests do not judge"
                )
                break
            sys.settrace(_tracer(str(self.live.__file__), reached, start + LONGEST_TEST_S))
            try:
                is_good = _passes(item)
            finally:
                sys.settrace(None)
            if is_good and reached:
                lines[number] = reached
                seconds[number] = time.process_time() - start
        return lines, seconds

    def _judged(
        self, session: pytest.Session, lines: dict[int, set[int]], seconds: dict[int, float]
    ) -> Iterator[tuple[Mutant, bool, int]]:
        """Each mutant, whether a test kills it, and how many reach it.

        A process judges one after another; after one that killed the process, a new one goes on.
        """
        kills = dict.fromkeys(lines, 0)

        def reach(mutant: Mutant) -> list[int]:
            here = range(mutant.first_line, mutant.last_line + 1)
            found = [item for item, its in lines.items() if not its.isdisjoint(here) or not mutant.function]
            found.sort(key=lambda item: (-(kills[item] + 0.1) / (seconds[item] + 0.01), item))
            chosen, total_s = [], 0.0
            for item in found:
                if total_s + seconds[item] <= LONGEST_TESTS_S:
                    chosen.append(item)
                    total_s += seconds[item]
            return chosen

        def judge(first: int) -> Iterator[int]:
            original = Path(str(self.live.__file__)).read_text()
            for mutant in self.chosen[first:]:
                tests = reach(mutant)
                signal.setitimer(signal.ITIMER_PROF, 3 + 10 * sum(seconds[item] for item in tests))
                try:
                    become(self.live, mutant.source)
                    killer = next((item for item in tests if not _passes(session.items[item])), -1)
                except Exception:
                    killer = tests[0] if tests else -1
                become(self.live, original)
                if killer >= 0:
                    kills[killer] += 1
                yield killer
                if killer >= 0 and not _passes(session.items[killer]):
                    return  # the fault left something behind: the next begins in a fresh process

        first = 0
        while first < len(self.chosen):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.close(reader)
                    _be_quiet()
                    with os.fdopen(writer, "w") as out:
                        for killer in judge(first):
                            print(killer, file=out, flush=True)
                    os._exit(0)
                finally:
                    os._exit(1)
            os.close(writer)
            start = first
            with os.fdopen(reader) as answers:
                for answer in answers:
                    mutant = self.chosen[first]
                    num_tests = len(reach(mutant))
                    if int(answer) >= 0:
                        kills[int(answer)] += 1
                    first += 1
                    yield mutant, int(answer) >= 0, num_tests
            _, status = os.waitpid(child, 0)
            if status != 0 or first == start:
                yield self.chosen[first], True, len(reach(self.chosen[first]))
                first += 1


def become(live: types.ModuleType, source: str) -> None:
    """Makes the functions of a module that is in use those of another source, and its constants."""
    other = types.ModuleType(live.__name__)
    other.__file__ = live.__file__
    code = compile(source, str(live.__file__), "exec")
    exec(code, other.__dict__)
    _take_over(vars(live), vars(other), live)


def _take_over(old: Any, new: Any, live: types.ModuleType) -> None:
    for name, theirs in list(new.items()):
        ours = old.get(name)
        mine, functions = _function(ours), _function(theirs)
        if mine is not None and functions is not None:
            if mine.__code__.co_filename == live.__file__ and not mine.__code__.co_freevars:
                mine.__code__ = functions.__code__
                mine.__defaults__ = functions.__defaults__
                mine.__kwdefaults__ = functions.__kwdefaults__
        elif isinstance(ours, type) and isinstance(theirs, type):
            if ours.__module__ == live.__name__ and not name.startswith("__"):
                _take_over(vars(ours), vars(theirs), live)
        elif (
            not name.startswith("__")
            and isinstance(old, dict)
            and isinstance(theirs, (int, float, str, tuple, frozenset))
        ):
            old[name] = theirs


def _function(found: Any) -> types.FunctionType | None:
    """The function of a method, property or cached function."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    elif isinstance(found, functools.cached_property):
        found = found.func
    found = getattr(found, "__wrapped__", found)
    return found if isinstance(found, types.FunctionType) else None


class TooLong(BaseException):
    """A test that takes too long to judge mutants."""


def _tracer(path: str, reached: set[int], until_s: float) -> Callable[..., Any]:
    """Notes the lines of a file that run, and ends a test that takes too long."""

    def line(frame: types.FrameType, event: str, _: object) -> Any:
        reached.add(frame.f_lineno)
        return line

    def call(frame: types.FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != path:
            if frame.f_lineno % 8 == 0 and time.process_time() > until_s:
                raise TooLong
            return None
        reached.add(frame.f_lineno)
        return line

    return call


def _passes(item: pytest.Item) -> bool:
    before = item.session.testsfailed
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    except TooLong:
        return False
    return item.session.testsfailed == before


def _be_quiet() -> None:
    """Of a process that is made to fail: no output, and an end to what it may take."""
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silent, number)
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_MEMORY_BYTES, LARGEST_MEMORY_BYTES))


def judged(module: str, args: argparse.Namespace) -> Score:
    """The score of a module, of all its mutants or of some drawn at random."""
    start = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    chosen = [each for each in mutants_of((SOURCE / module).read_text()) if args.only in each.function]
    num_mutants = len(chosen)
    if args.sample is not None and args.sample < num_mutants:
        places = sorted(random.Random(args.seed).sample(range(len(chosen)), args.sample))
        chosen = [chosen[place] for place in places]
    judge = Judge(module, chosen, args.seconds)
    arguments = ["-o", "addopts=--import-mode=importlib", "-m", "not slow or sampled"]
    arguments += [
        "-o",
        "faulthandler_timeout=0",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:terminal",
        *(args.tests or tests_of(module)),
    ]
    with contextlib.chdir(ROOT):
        code = pytest.main(arguments, plugins=[judge])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"{module}: pytest ends with {code}")
    end = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    judge.score.cpu_s = end - start
    judge.score.of = num_mutants
    return judge.score


def _key(module: str, survivor: str) -> tuple[str, str, str, str]:
    """How `equivalent.diff` names a mutant that was printed."""
    where, was, now = survivor.split("\n")
    return module, where.rpartition(":")[0], was[2:], now[2:]


def table() -> Iterator[str]:
    """The scores kept in `build/mutation`, as a table in Markdown."""
    yield "| module | mutants | judged | killed | equivalent | survivors | score |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    scores = [Score(**json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))]
    scores.sort(key=lambda score: score.module)
    known = equivalents()
    for score in scores:  # what was argued since
        argued = [text for text in score.survivors if _key(score.module, text) in known]
        score.equivalent += len(argued)
        score.survivors = [text for text in score.survivors if text not in argued]
    columns = ("of", "total", "killed", "equivalent")
    sums = Score("all", *(sum(getattr(score, column) for score in scores) for column in columns))
    sums.survivors = [mutant for score in scores for mutant in score.survivors]
    for score in (*scores, sums):
        counts = (score.of, score.total, score.killed, score.equivalent, len(score.survivors))
        label = "these" if score is sums else f"`{score.module}`"
        yield f"| {label} | {' | '.join(f'{count:,}' for count in counts)} | {score.share:.1%} |"


def main() -> None:
    """Judges modules one after another, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="*", help="a path in src/tilewright; default: all that are found")
    parser.add_argument("--sample", type=int, help="mutants of each module, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the name of the functions to mutate")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="CPU in which tests run once to see what they reach, those that name most of a module first",
    )
    parser.add_argument(
        "--tests", nargs="+", help="the test files that judge, instead of all that import a module"
    )
    parser.add_argument("--list", action="store_true", help="print modules and their test files, run nothing")
    parser.add_argument("--table", action="store_true", help="print the last scores, run nothing")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table()))
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    for module in args.module or modules():
        if args.list:
            print(module, *(str(Path(each).relative_to(ROOT)) for each in tests_of(module)), sep="\n  ")
            continue
        child = os.fork()
        if child == 0:
            score = judged(module, args)
            if not args.only:
                (RESULTS / (module.replace("/", "-") + ".json")).write_text(json.dumps(vars(score)))
            print(
                f"{module}: {score.total} mutants, {score.killed} killed, {score.equivalent} equivalent, "
                f"{len(score.survivors)} survive: {score.share:.1%}; {score.cpu_s:.0f} s CPU",
                *(f"killed, though said to be equivalent: {each}" for each in score.unused),
                sep="\n",
                flush=True,
            )
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
