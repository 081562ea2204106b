"""How large IOS's search is: Table 1 of the paper to the digit, and what has a closed form."""

# mypy: disable-error-code="list-item"

from math import comb

import pytest
from tests.support.published_stages import count_merges, unit_merge_sets

from tilewright.schedule.ios.counts import Counts, count
from tilewright.schedule.ios.endings import EndingSpace, Grouping, Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.zoo.ios_blocks import ZooBlock, load_blocks

LARGEST = {
    "ios_inception_v3": "E1",
    "ios_randwire": "ws32_c616",
    "ios_nasnet_a": "first1",
    "ios_squeezenet": "fire2_proj",
}
PRUNINGS = [(r, s) for r in (1, 2, 3) for s in (3, 8)]


def block_of(network: str, label: str) -> ZooBlock:
    return next(block for block in load_blocks(network).blocks if block.label == label)


def counts_of(network: str, grouping: Grouping, r: int | None = None, s: int | None = None) -> Counts:
    graph = StageGraph.of_block(block_of(network, LARGEST[network]))
    return count(EndingSpace(graph, grouping, Pruning(r, s)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("ios_inception_v3", Counts(11, 6, 180, 4871, 3757392, 842)),
        ("ios_randwire", Counts(33, 8, 5420, 1170663, 91973106270886052032664, 154400)),
        ("ios_nasnet_a", Counts(18, 8, 2200, 307841, 7150961274600, 31867)),
        ("ios_squeezenet", Counts(6, 3, 12, 51, 131, 29)),
    ],
)
def test_table_1_of_the_paper(network: str, expected: Counts) -> None:
    assert counts_of(network, "single-source") == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("network", "num_transitions", "num_schedules"),
    [
        ("ios_inception_v3", 5040, 4410136),
        ("ios_nasnet_a", 335331, 8839301008800),
        ("ios_squeezenet", 60, 152),
    ],
)
def test_any_connected_group_allows_more(network: str, num_transitions: int, num_schedules: int) -> None:
    counts = counts_of(network, "component")
    assert (counts.num_transitions, counts.num_schedules) == (num_transitions, num_schedules)


@pytest.mark.slow
def test_any_connected_group_of_the_widest_block() -> None:
    counts = counts_of("ios_randwire", "component")
    assert counts.num_transitions == 3560808
    assert round(counts.num_schedules / 1e20) == 1185


PRUNED = {
    "ios_inception_v3": [
        (1770, 873949, 111),
        (1966, 895111, 180),
        (3139, 3340568, 307),
        (3571, 3404004, 510),
        (4037, 3659458, 469),
        (4616, 3727132, 775),
    ],
    "ios_randwire": [
        (117630, 226837644710630242869, 1132),
        (161914, 242096330511477634583, 5420),
        (298421, 32639091097183032581543, 5839),
        (485290, 34554104022921254891818, 36440),
        (452409, 69461490346687995272624, 12681),
        (774186, 73463412023756996955831, 75888),
    ],
    "ios_nasnet_a": [
        (56448, 857900389449, 428),
        (86396, 906415242333, 2200),
        (113789, 5601672239953, 1390),
        (220169, 5878437302908, 9850),
        (124303, 6652752534824, 2740),
        (233842, 6972300982198, 12793),
    ],
    "ios_squeezenet": [
        (28, 25, 12),
        (28, 25, 12),
        (42, 101, 22),
        (42, 101, 22),
        (47, 126, 26),
        (47, 126, 26),
    ],
}


LARGE = ("ios_randwire", "ios_nasnet_a")


@pytest.mark.parametrize(
    "network", [pytest.param(n, marks=[pytest.mark.slow] if n in LARGE else []) for n in PRUNED]
)
def test_pruned_counts(network: str) -> None:
    for (r, s), expected in zip(PRUNINGS, PRUNED[network], strict=True):
        counts = counts_of(network, "single-source", r, s)
        assert (counts.num_transitions, counts.num_schedules, counts.num_stages) == expected


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("ios_inception_v3", (4052, 4631)),
        pytest.param("ios_randwire", (492908, 843754), marks=pytest.mark.slow),
        pytest.param("ios_nasnet_a", (124832, 234533), marks=pytest.mark.slow),
        ("ios_squeezenet", (51, 51)),
    ],
)
def test_rules_for_groups_differ_from_three_operators_on(network: str, expected: tuple[int, int]) -> None:
    for s, transitions in zip((3, 8), expected, strict=True):
        assert counts_of(network, "component", 3, s).num_transitions == transitions
        assert counts_of(network, "component", 2, s) == counts_of(network, "single-source", 2, s)


@pytest.mark.parametrize(
    ("network", "expected"), [("ios_inception_v3", (571, 108)), ("ios_squeezenet", (19, 3))]
)
def test_merges_add_transitions(network: str, expected: tuple[int, int]) -> None:
    block = block_of(network, LARGEST[network])
    space = EndingSpace(StageGraph.of_block(block))
    assert count_merges(space, unit_merge_sets(block)) == expected


@pytest.mark.parametrize("network", ["ios_nasnet_a", "ios_randwire"])
def test_compounds_never_merge(network: str) -> None:
    assert all(not unit_merge_sets(block) for block in load_blocks(network).blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "num_stages"),
    [("ios_inception_v3", 5319), ("ios_randwire", 212775), ("ios_nasnet_a", 240330), ("ios_squeezenet", 168)],
)
def test_stages_of_whole_networks(network: str, num_stages: int) -> None:
    spaces = (
        EndingSpace(StageGraph.of_block(block), "single-source", Pruning(3, 8))
        for block in load_blocks(network).blocks
    )
    assert sum(count(space).num_stages for space in spaces) == num_stages


@pytest.mark.parametrize(("num_chains", "length"), [(1, 5), (2, 3), (3, 2), (4, 1)])
def test_chains_have_a_closed_form(num_chains: int, length: int) -> None:
    predecessors = tuple(0 if i % length == 0 else 1 << (i - 1) for i in range(num_chains * length))
    graph = StageGraph(tuple(map(str, range(len(predecessors)))), predecessors)
    for grouping in ("component", "single-source"):
        counts = count(EndingSpace(graph, grouping))
        assert counts.width == num_chains
        assert counts.num_states == (length + 1) ** num_chains - 1
        assert counts.num_transitions == comb(length + 2, 2) ** num_chains - (length + 1) ** num_chains


@pytest.mark.parametrize(("size", "fubini"), [(1, 1), (2, 3), (3, 13), (4, 75), (5, 541), (6, 4683)])
def test_schedules_of_operators_without_edges_are_fubini_numbers(size: int, fubini: int) -> None:
    graph = StageGraph(tuple("abcdef"[:size]), (0,) * size)
    assert count(EndingSpace(graph)).num_schedules == fubini


def test_the_diamond() -> None:
    diamond = StageGraph.of_edges("abcd", ["ab", "ac", "bd", "cd"])
    component, single = (count(EndingSpace(diamond, g)) for g in ("component", "single-source"))
    assert (component.num_transitions, component.num_schedules) == (14, 12)
    assert (single.num_transitions, single.num_schedules) == (13, 11)


def test_figure_5_of_the_paper() -> None:
    counts = count(EndingSpace(StageGraph.of_edges("abc", ["ab"])))
    assert counts == Counts(3, 2, 5, 12, 8, 7)
