"""Of nodes that are as good, the one that has the data; and nothing but that is another one for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import NodeChanged, NodeRemoved, SessionChanged, SessionRemoved
from controlplane.domain.changes import StockChanged as Stocked
from controlplane.domain.plan import Placement
from controlplane.domain.values import (
    Allocation,
    DatasetVersion,
    Isolation,
    Node,
    Session,
    SessionSpec,
    Stock,
)
from controlplane.scheduler import ClusterIndex
from controlplane.scheduler.eligibility import Eligibility
from controlplane.scheduler.fit import request_of
from controlplane.scheduler.locality import ASSUMED_BYTES_PER_S, MOST_LOOKED_AT, Locality
from controlplane.scheduler.node_index import NodeIndex
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, held, node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW

GB = 10**9


def wants(*digests: str, **facts: Any) -> dict[str, Any]:
    """A spec with these datasets."""
    datasets = tuple(DatasetVersion(owner="lab", name=d, version=1, digest=d) for d in digests)
    return {"datasets": datasets, **facts}


def has(name: str, *, bytes_per_s: float = 0.0, **things: int) -> Stocked:
    return Stocked(name=name, stock=Stock(things=things, bytes_per_s=bytes_per_s))


def placed(one: Session, *things: Node | Allocation | Stocked) -> Placement:
    """Where a session goes on such a cluster."""
    stocks = [thing for thing in things if isinstance(thing, Stocked)]
    index = ClusterIndex.of(cluster(one, *[t for t in things if not isinstance(t, Stocked)]))
    index.apply(stocks)
    [placement] = index.plan(NOW).placements
    return placement


def nodes_of(placement: Placement) -> list[str]:
    return [replica.node for replica in placement.replicas]


def test_of_equal_nodes_the_one_with_the_dataset_is_taken_and_that_is_said() -> None:
    one = session(spec=wants("d"))
    placement = placed(one, node("a"), node("b"), node("c"), has("b", d=GB))
    assert nodes_of(placement) == ["b"]
    assert placement.replicas[0].is_near_data


def test_nothing_is_said_where_best_fit_would_have_taken_it_too() -> None:
    for stocks in ([has("a", d=GB)], [has("a", d=GB), has("b", d=GB)], [has("b", other=GB)], []):
        placement = placed(session(spec=wants("d")), node("a"), node("b"), *stocks)
        assert nodes_of(placement) == ["a"]
        assert not placement.replicas[0].is_near_data


def test_a_session_without_data_goes_where_it_always_went() -> None:
    assert nodes_of(placed(session(), node("a"), node("b"), has("b", d=GB))) == ["a"]


def test_free_cores_and_memory_are_less_than_the_data() -> None:
    """The tighter of two in cores is taken only where there is as little to fetch."""
    nodes = (node("a", cpu=4000), node("b", cpu=8000))
    assert nodes_of(placed(session(spec=wants("d")), *nodes)) == ["a"]
    assert nodes_of(placed(session(spec=wants("d")), *nodes, has("b", d=GB))) == ["b"]


def test_cores_that_others_need_for_their_gpus_are_more_than_the_data() -> None:
    """Those who come ask for 8 cores with a GPU: the GPU beside 4 of them is of use to few."""
    index = ClusterIndex.of(cluster(node("a", 1, cpu=4000), node("b", 1, cpu=8000)))
    for usual in [session(1000, cpu=8000) for _ in range(40)]:
        index.apply([SessionChanged(session=usual), SessionRemoved(session_id=usual.id)])
    index.apply([has("b", d=GB), SessionChanged(session=session(cpu=4000, spec=wants("d")))])
    assert nodes_of(index.plan(NOW).placements[0]) == ["a"]


def test_free_shares_are_compared_device_by_device() -> None:
    one = session(1000, spec=wants("d"))
    nodes = (node("a", 3), node("b", 3))
    shares = [held("a", ("a-0", 400), ("a-1", 1000)), held("b", ("b-0", 700), ("b-1", 700))]
    assert nodes_of(placed(one, *nodes, *shares, has("b", d=GB))) == ["a"]


@pytest.mark.parametrize("gpu", [1000, 500])
def test_no_gpus_are_broken_for_it(gpu: int) -> None:
    """The node that has the data has more free: the widest stays whole."""
    one = session(gpu, spec=wants("d"))
    assert nodes_of(placed(one, node("a", 1), node("b", 2), has("b", d=GB))) == ["a"]
    opened = held("a", ("a-0", 500))
    assert nodes_of(placed(session(500, spec=wants("d")), node("a"), node("b"), opened)) == ["a"]
    one = session(500, spec=wants("d"))
    assert nodes_of(placed(one, node("a"), node("b"), opened, has("b", d=GB))) == ["a"]


def test_what_is_closed_full_or_another_model_is_not_taken_for_its_data() -> None:
    one = session(spec=wants("d"))
    others = (
        node("b", draining=True),
        node("c", model="other"),
        node("d", isolation=Isolation.NONE, owner="lee"),
        node("e", isolation=Isolation.NAMESPACE),
    )
    full = (node("f"), held("f", ("f-0", 1000), ("f-1", 1000)))
    stocks = [has(name, d=GB) for name in "bcdefg"]
    contained = node("a", isolation=Isolation.CONTAINER)
    assert nodes_of(placed(one, contained, *others, *full, *stocks)) == ["a"]


def test_seconds_count_and_not_bytes() -> None:
    """Half of it missing at a tenth of the speed takes longer than all of it."""
    one = session(spec=wants("d", "e"))
    nodes = (node("a"), node("b"))
    fast = has("a", bytes_per_s=10 * ASSUMED_BYTES_PER_S, x=1)
    slow = has("b", bytes_per_s=ASSUMED_BYTES_PER_S, d=GB)
    elsewhere = [node("z", 8), has("z", d=GB, e=GB)]
    assert nodes_of(placed(one, *nodes, fast, slow, *elsewhere)) == ["a"]
    assert nodes_of(placed(one, *nodes, slow, *elsewhere)) == ["b"]


def test_an_image_is_data_too() -> None:
    one = session(spec={"image": "lab/torch"})
    nodes = [node(name, isolation=Isolation.CONTAINER) for name in "ab"]
    near = has("b", **{"lab/torch:latest": GB})
    assert nodes_of(placed(one, *nodes, near)) == ["b"]
    one = session(spec={"image": "registry:5000/torch"})
    assert nodes_of(placed(one, *nodes, has("b", **{"registry:5000/torch:latest": GB}))) == ["b"]
    one = session(spec={"image": "lab/torch:2"})
    assert nodes_of(placed(one, *nodes, near)) == ["a"]


def test_a_gang_prefers_it_inside_its_pod_on_as_few_nodes() -> None:
    one = session(2000, 2, spec=wants("d"))
    here = [node(name, pod="p") for name in "abcd"]
    there = [node(name, pod="q") for name in ("x", "y", "z", "w", "v")]
    stocks = [has(name, d=GB) for name in ("b", "d", "x", "y")]
    placement = placed(one, *here, *there, *stocks)
    assert nodes_of(placement) == ["b", "d"]
    assert all(replica.is_near_data for replica in placement.replicas)
    # Two replicas fit on one node: no second one is opened for the data.
    one = session(1000, 2, spec=wants("d"))
    halves = [held("x", ("x-0", 1000)), held("y", ("y-0", 1000))]
    assert len(set(nodes_of(placed(one, node("a"), node("x"), node("y"), *halves, *stocks)))) == 1


def test_a_gang_is_not_taken_where_fewer_of_it_fit() -> None:
    one = session(1000, 2, cpu=4000, spec=wants("d"))
    nodes = (node("a", cpu=8000), node("b", cpu=6000))
    placement = placed(one, *nodes, node("z", 1, cpu=2000), has("b", d=GB))
    assert nodes_of(placement) == ["a", "a"]


def test_a_gang_across_nodes_without_a_pod_prefers_it_too() -> None:
    one = session(2000, 2, spec=wants("d"))
    placement = placed(one, *[node(name) for name in "abc"], has("b", d=GB), has("c", d=GB))
    assert nodes_of(placement) == ["b", "c"]


def test_only_so_many_nodes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many have it and are no good."""
    nodes = [node(f"full{i:03}") for i in range(200)]
    full = [held(one.name, *[(device.uuid, 1000) for device in one.devices]) for one in nodes]
    index = ClusterIndex.of(cluster(*nodes, *full, node("a"), node("z"), session(spec=wants("d"))))
    index.apply([has(one.name, d=GB) for one in (*nodes, node("z"))])
    looked: list[str] = []
    rooms, get = index.cluster.rooms, index.cluster.rooms.get
    monkeypatch.setattr(rooms, "get", lambda name: looked.append(name) or get(name))
    assert nodes_of(index.plan(NOW).placements[0]) == ["a"]
    assert len(looked) == MOST_LOOKED_AT


def test_what_a_node_has_no_longer_does_not_count() -> None:
    one = session(spec=wants("d"))
    index = ClusterIndex.of(cluster(node("a"), node("b"), one))
    locality, room = Locality(index.cluster.rooms), index.cluster.rooms.get("a")
    assert room is not None
    request = request_of("kim", one.spec)

    def nearest(spec: SessionSpec = one.spec) -> str:
        suits = Eligibility(index.cluster.rooms, request)
        near = locality.nearest_to(spec)
        return near.room(room, request, suits).name if near else "a"

    locality.set("b", Stock(things={"d": 1, "e": 1}))
    locality.set("gone", Stock(things={"d": 1}))
    assert nearest() == "b"
    locality.set("b", Stock(things={"e": 1}))
    assert nearest() == "a"
    locality.set("b", Stock(things={"d": 2}))
    assert nearest() == "b"
    locality.set("b", Stock())
    locality.set("gone", Stock())
    assert nearest() == "a"
    assert not locality._holders


# However a cluster looks.

sizes = st.sampled_from([0, 250, 500, 1000, 1000, 2000, 4000])
things = st.dictionaries(st.sampled_from("def"), st.sampled_from([1, GB, 50 * GB]))


@st.composite
def clusters(draw: st.DrawFn) -> list[Any]:
    """Nodes of few kinds, some of them partly used."""
    made: list[Any] = []
    for number in range(draw(st.integers(1, 8))):
        one = node(
            f"n{number}",
            draw(st.sampled_from([2, 4])),
            cpu=draw(st.sampled_from([8000, 8000, 16000])),
            model=draw(st.sampled_from(["M", "M", "K"])),
            pod=draw(st.sampled_from(["", "p", "q"])),
        )
        made.append(one)
        shares = draw(st.lists(st.sampled_from([300, 500, 1000]), max_size=2))
        if shares:
            made.append(held(one.name, *[(f"{one.name}-{i}", s) for i, s in enumerate(shares)]))
    return made


def worth(index: ClusterIndex, one: Session, placement: Placement) -> list[Any]:
    """What best fit goes by but for cores and memory, of each room that was taken, and where it is."""
    request = request_of("kim", one.spec)
    shape = index.cluster.rooms.shape_of(request)
    suits = index._fits_of(shape).suits
    found = []
    for name in dict.fromkeys(nodes_of(placement)):
        room = index.cluster.rooms.get(name)
        assert room is not None
        _, rank = suits.of(room.tie)
        pod = room.node.pod if one.spec.replica_count > 1 else None
        found.append((rank[:-2], room.tie.state.gpus, room.alike_for(request), pod))
    return found


@settings(max_examples=examples(300), deadline=None)
@given(
    clusters(),
    st.lists(things, min_size=8, max_size=8),
    st.sets(st.sampled_from("def"), min_size=1),
    sizes,
    st.sampled_from([1, 1, 2, 3]),
    st.booleans(),
)
def test_it_changes_neither_what_is_placed_nor_how_well(
    made: list[Any],
    stocks: list[dict[str, int]],
    digests: set[str],
    gpu: int,
    replicas: int,
    is_scored: bool,
) -> None:
    one = session(gpu, replicas, spec=wants(*sorted(digests)))
    placements, worths = [], []
    for is_told in (False, True):
        index = ClusterIndex.of(cluster(*made))
        for usual in [session(size) for size in (1000, 500, 4000)] * 12 if is_scored else ():
            index.apply([SessionChanged(session=usual), SessionRemoved(session_id=usual.id)])
        if is_told:
            told = enumerate(stocks)
            index.apply([Stocked(name=f"n{i}", stock=Stock(things=t)) for i, t in told])
        index.apply([SessionChanged(session=one)])
        plan = index.plan(NOW)
        index.settle(plan, {one.id})
        placements.append(plan.placements)
        worths.append([worth(index, one, placement) for placement in plan.placements])
    assert len(placements[0]) == len(placements[1])
    assert worths[0] == worths[1]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), things), max_size=20))
def test_who_has_what_is_what_was_said_last(said: list[tuple[str, dict[str, int]]]) -> None:
    kept, last = Locality(NodeIndex()), Locality(NodeIndex())
    for name, stock in said:
        kept.set(name, Stock(things=stock))
    for name, stock in dict(said).items():
        last.set(name, Stock(things=stock))
    assert {t: (h.nodes, h.size) for t, h in kept._holders.items()} == {
        t: (h.nodes, h.size) for t, h in last._holders.items()
    }


def test_a_node_that_came_back_is_not_known_by_what_it_had() -> None:
    snapshot = cluster(node("a"), node("b")).apply([has("b", d=GB)])
    assert snapshot.stocks
    again = snapshot.apply([NodeRemoved(name="b"), Stocked(name="b", stock=Stock())])
    again = again.apply(
        [NodeChanged(node=node("b")), SessionChanged(session=session(spec=wants("d")))]
    )
    assert not again.stocks
    [placement] = ClusterIndex.of(again).plan(NOW).placements
    assert nodes_of(placement) == ["a"]
