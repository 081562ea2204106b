"""The network against what pen and paper say of it, and its compiled form against the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import noc_compiled
from tests.support.noc_flits import Delivery, Packet, deliver

from tilewright.cost.noc.mesh import EAST, LOCAL, NUM_PORTS, WEST, Mesh
from tilewright.errors import UsageError

MESH = Mesh(4, 4)
DELIVER = {"plain": deliver, "compiled": noc_compiled.deliver}
both = pytest.mark.parametrize("way", DELIVER)


def distance(mesh: Mesh, a: int, b: int) -> int:
    """Links between the routers of two terminals."""
    (a, _), (b, _) = mesh.entrance(a), mesh.entrance(b)
    return abs(a % mesh.num_columns - b % mesh.num_columns) + abs(
        a // mesh.num_columns - b // mesh.num_columns
    )


def is_output(mesh: Mesh, router: int, port: int) -> bool:
    """Whether something lies behind a port."""
    x, y = router % mesh.num_columns, router // mesh.num_columns
    beyond = (False, y == 0, x == mesh.num_columns - 1, y == mesh.num_rows - 1, x == 0 and router != 0)
    return not beyond[port]


@pytest.mark.sampled(5)
@both
@pytest.mark.parametrize(("source", "destination"), [(0, 15), (5, 6), (15, 0), (16, 15), (13, 16), (16, 0)])
@pytest.mark.parametrize("num_flits", [1, 2, 9, 40])
def test_one_packet_needs_a_cycle_for_each_channel_and_each_flit(
    way: str, source: int, destination: int, num_flits: int
) -> None:
    found = DELIVER[way](MESH, (Packet(source, (destination,), num_flits, ready_cycle=3),))
    channels = distance(MESH, source, destination) + 2  # into the first router, out of the last
    assert found.arrival_cycles[0] == {destination: 3 + channels + num_flits - 1}
    assert sum(map(sum, found.link_flits)) == (channels - 1) * num_flits


@both
@pytest.mark.parametrize("hop_cycles", [1, 2, 7])
def test_a_hop_takes_as_long_as_is_said(way: str, hop_cycles: int) -> None:
    """Only the ways between routers are longer; with room for what is on a link, a flit comes each cycle."""
    mesh = Mesh(4, 4, fifo_flits=3 + hop_cycles, hop_cycles=hop_cycles)
    for source, destination in ((0, 15), (16, 6), (13, 16), (16, 0)):
        found = DELIVER[way](mesh, (Packet(source, (destination,), 30),))
        links = distance(mesh, source, destination)
        assert found.arrival_cycles[0] == {destination: links * hop_cycles + 2 + 30 - 1}


@both
def test_what_is_on_a_link_has_its_place_in_the_buffer_behind_it(way: str) -> None:
    # The second flit leaves when the first, of one place, is out of the second router: a cycle after it came.
    narrow = Mesh(1, 2, fifo_flits=1, hop_cycles=3)
    found = DELIVER[way](narrow, (Packet(0, (1,), 5),))
    assert found.arrival_cycles[0] == {1: 1 + 3 + 1 + 4 * (3 + 1)}


@both
def test_all_to_one_is_bound_by_the_port_of_that_one(way: str) -> None:
    sources = [e for e in range(16) if e != 5]
    num_flits = 20
    found = DELIVER[way](MESH, tuple(Packet(e, (5,), num_flits) for e in sources))
    # The nearest flit needs 3 cycles, then the port is never idle: others wait before it.
    assert found.link_flits[5][LOCAL] == 15 * num_flits
    assert found.cycles == 15 * num_flits + 2


@both
def test_a_tree_carries_every_flit_once_over_each_of_its_links(way: str) -> None:
    num_flits = 9
    everyone = tuple(range(16))
    found = DELIVER[way](MESH, (Packet(MESH.memory, everyone, num_flits),))
    ports = MESH.tree(MESH.memory, everyone)
    for router in range(16):
        expected = tuple(num_flits * (ports[router] >> port & 1) for port in range(NUM_PORTS))
        assert found.link_flits[router] == expected
    assert sum(ports[r].bit_count() for r in range(16)) == 15 + 16  # a tree over 16 routers, 16 elements
    for element, cycle in found.arrival_cycles[0].items():
        assert cycle == distance(MESH, MESH.memory, element) + 2 + num_flits - 1


@both
def test_a_tree_of_many_packets_takes_a_cycle_per_flit(way: str) -> None:
    packets = tuple(Packet(MESH.memory, tuple(range(16)), 8) for _ in range(30))
    assert DELIVER[way](MESH, packets).cycles == 30 * 8 + distance(MESH, MESH.memory, 15) + 1


@both
def test_a_saturated_link_carries_a_flit_each_cycle(way: str) -> None:
    # 0 -> 3, 1 -> 3 and 2 -> 3 share the link from 2 to 3.
    packets = tuple(Packet(s, (3,), 7) for _ in range(40) for s in (0, 1, 2))
    found = DELIVER[way](MESH, packets)
    assert found.link_flits[2][EAST] == 3 * 40 * 7
    assert found.cycles == 3 * 40 * 7 + 2  # the way into router 2, and out of router 3


@both
def test_a_single_flit_of_room_halves_a_link(way: str) -> None:
    narrow = Mesh(1, 2, fifo_flits=1)
    found = DELIVER[way](narrow, (Packet(0, (1,), 50),))
    assert found.cycles == 2 * 49 + 3


@both
def test_a_worm_blocks_the_link_until_its_tail_is_through(way: str) -> None:
    # Both want the link from 1 to 2. The packet of 0 comes to router 1 a cycle later than that of 1 itself.
    line = Mesh(1, 4)
    long, short = 30, 2
    found = DELIVER[way](line, (Packet(1, (3,), long), Packet(0, (2,), short)))
    alone = distance(line, 1, 3) + 2 + long - 1
    assert found.arrival_cycles[0] == {3: alone}
    # The tail of the first leaves router 1 in cycle `long`; then the short one passes 1 and 2.
    assert found.arrival_cycles[1] == {2: long + 1 + 1 + short}
    # A third packet behind the blocked one waits although its own port is free.
    behind = DELIVER[way](line, (Packet(1, (3,), long), Packet(0, (2,), short), Packet(0, (1,), 1)))
    assert behind.arrival_cycles[2] == {1: long + 1 + short + 1}


@both
def test_packets_of_one_way_never_overtake(way: str) -> None:
    found = DELIVER[way](MESH, tuple(Packet(2, (13,), 3) for _ in range(10)))
    times = [packet[13] for packet in found.arrival_cycles]
    assert times == sorted(times)
    assert times[-1] - times[0] == 9 * 3


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Mesh, tuple[Packet, ...]]:
    sizes = st.integers(1, 4)
    mesh = Mesh(draw(sizes), draw(sizes), draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 5])))
    everyone = list(range(mesh.num_elements))
    packets = []
    for _ in range(draw(st.integers(1, 40))):
        source = draw(st.sampled_from([*everyone, *[mesh.memory] * max(1, len(everyone) // 2)]))
        if source == mesh.memory:
            destinations = draw(st.lists(st.sampled_from(everyone), min_size=1, unique=True))
        else:
            destinations = [draw(st.sampled_from([e for e in (*everyone, mesh.memory) if e != source]))]
        packets.append(
            Packet(source, tuple(destinations), draw(st.integers(1, 12)), draw(st.integers(0, 30)))
        )
    return mesh, tuple(packets)


def check(mesh: Mesh, packets: tuple[Packet, ...], found: Delivery) -> None:
    """Everything arrives, none earlier than it can, and flits are neither lost nor invented."""
    for packet, arrivals in zip(packets, found.arrival_cycles, strict=True):
        assert set(arrivals) == set(packet.destinations)
        for destination, cycle in arrivals.items():
            links = distance(mesh, packet.source, destination) * mesh.hop_cycles
            least = packet.ready_cycle + links + 1 + packet.num_flits
            assert cycle >= least
    expected = [[0] * NUM_PORTS for _ in range(mesh.num_elements)]
    entered = [0] * (mesh.num_elements + 1)
    for packet in packets:
        entered[packet.source] += packet.num_flits
        for router, ports in mesh.tree(packet.source, packet.destinations).items():
            for port in range(NUM_PORTS):
                expected[router][port] += packet.num_flits * (ports >> port & 1)
    assert found.link_flits == tuple(map(tuple, expected))
    assert found.entered_flits == tuple(entered)
    for router in range(mesh.num_elements):
        for port in range(NUM_PORTS):
            assert found.link_flits[router][port] <= found.cycles
            assert is_output(mesh, router, port) or not found.link_flits[router][port]


@given(traffic())
@settings(max_examples=60, deadline=None)
def test_all_traffic_arrives(given_traffic: tuple[Mesh, tuple[Packet, ...]]) -> None:
    mesh, packets = given_traffic
    found = deliver(mesh, packets)
    check(mesh, packets, found)
    assert deliver(mesh, packets) == found  # the same again
    assert noc_compiled.deliver(mesh, packets) == found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_crowded_meshes_do_not_deadlock(seed: int) -> None:
    import random

    draw = random.Random(seed)
    mesh = Mesh(4, 4, fifo_flits=1 + seed)
    packets = []
    for _ in range(400):
        if draw.random() < 0.4:
            packets.append(
                Packet(16, tuple(draw.sample(range(16), draw.randint(1, 16))), draw.randint(1, 20))
            )
        else:
            source = draw.randrange(16)
            goal = draw.choice([e for e in range(17) if e != source])
            packets.append(Packet(source, (goal,), draw.randint(1, 20)))
    for way in DELIVER.values():
        check(mesh, tuple(packets), way(mesh, tuple(packets)))


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (Packet(3, (1, 2), 4), "only the memory sends to several"),
        (Packet(3, (3,), 4), "terminal 3 sends to itself"),
        (Packet(3, (99,), 4), "elements 0 to 15"),
        (Packet(3, (4,), 0), "needs a flit"),
        (Packet(16, (4, 4), 1), "named twice"),
    ],
)
def test_what_the_mesh_cannot_carry_is_refused(packet: Packet, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        deliver(MESH, (packet,))


def test_ways_go_along_the_row_first() -> None:
    assert [router for router, _ in MESH.way(1, 14)] == [1, 2, 6, 10, 14]
    assert MESH.way(14, 16)[-1] == (0, WEST)
    assert [router for router, _ in MESH.way(14, 16)] == [14, 13, 12, 8, 4, 0]


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (16, (4, 4)), (12, (3, 4)), (168, (13, 13)), (2, (1, 2))]
)
def test_a_mesh_is_nearly_square(count: int, shape: tuple[int, int]) -> None:
    mesh = Mesh.of(count)
    assert (mesh.num_rows, mesh.num_columns) == shape
    assert mesh.num_elements >= count
