"""Cores for the groups of a stage, against brute force."""

from collections.abc import Mapping, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.schedule.moldable import allocation, core_counts, packing

times = st.integers(0, 30).map(float)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Mapping[int, float]], int]:
    num_cores = draw(st.integers(1, 8))
    counts = core_counts(num_cores)
    return [{k: draw(times) for k in counts} for _ in range(draw(st.integers(1, 4)))], num_cores


def best_makespan(times_ns: Sequence[Mapping[int, float]], num_cores: int) -> float | None:
    fitting = (
        max(t[k] for t, k in zip(times_ns, counts, strict=True))
        for counts in product(*times_ns)
        if sum(counts) <= num_cores
    )
    return min(fitting, default=None)


@given(groups())
@settings(max_examples=200, deadline=None)
def test_cores_are_given_out_exactly(case: tuple[list[Mapping[int, float]], int]) -> None:
    times_ns, num_cores = case
    answer = allocation(times_ns, num_cores)
    if answer is None:
        assert best_makespan(times_ns, num_cores) is None
        return
    assert sum(answer.num_cores) <= num_cores
    reached = max(t[k] for t, k in zip(times_ns, answer.num_cores, strict=True))
    assert reached == answer.makespan_ns == best_makespan(times_ns, num_cores)


@given(st.lists(times, min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_few_groups_are_packed_exactly(times_ns: list[float], num_cores: int) -> None:
    answer = packing(times_ns, num_cores)
    assert sorted(i for core in answer.cores for i in core) == list(range(len(times_ns)))
    assert len(answer.cores) <= num_cores
    loads = (
        [sum(t for t, core in zip(times_ns, cores, strict=True) if core == c) for c in range(num_cores)]
        for cores in product(range(num_cores), repeat=len(times_ns))
    )
    assert answer.makespan_ns == min(map(max, loads))
    assert answer.makespan_ns == max(sum(times_ns[i] for i in core) for core in answer.cores)


def test_many_groups_are_packed_by_length() -> None:
    answer = packing([float(i) for i in range(1, 13)], 3)
    assert sorted(i for core in answer.cores for i in core) == list(range(12))
    assert answer.makespan_ns <= 4 / 3 * sum(range(1, 13)) / 3
