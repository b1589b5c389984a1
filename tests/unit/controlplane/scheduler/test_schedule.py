from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.plan import Plan
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    DatasetVersion,
    DeviceShare,
    Isolation,
    Node,
    Resources,
    Session,
)
from controlplane.scheduler.fit import MOST_ON_ONE_NODE, data_bytes, most_on
from tests.support.examples import examples
from tests.unit.controlplane.builders import GIB, cluster, held, node, session
from tests.unit.controlplane.snapshot import ClusterSnapshot, schedule, takes_sessions

NOW = 1_000_000.0


def places(plan: Plan) -> dict[str, list[str]]:
    return {one.session_id: [r.node for r in one.replicas] for one in plan.placements}


def reason(plan: Plan, waiting: Session) -> str:
    return next(d.explanation.reason for d in plan.deferrals if d.session_id == waiting.id)


def test_nothing_in_nothing_out() -> None:
    assert schedule(ClusterSnapshot(), NOW) == Plan(revision=0)
    assert schedule(cluster(node()), NOW) == Plan(revision=7)


def test_an_idle_cluster_places_at_once() -> None:
    wanted = session()
    plan = schedule(cluster(node(), wanted), NOW)
    assert plan.placements[0].replicas[0].devices == (DeviceShare(uuid="a-0", thousandths=1000),)
    assert not plan.deferrals


def test_the_tightest_node_is_taken_and_the_widest_kept() -> None:
    wanted = session()
    nodes = (node("wide", 8), node("tight", 2), node("full", 1), held("full", ("full-0", 1000)))
    assert places(schedule(cluster(*nodes, wanted), NOW)) == {wanted.id: ["tight"]}


def test_a_share_goes_to_an_opened_device() -> None:
    wanted = session(500)
    opened = held("wide", ("wide-3", 300))
    plan = schedule(cluster(node("wide", 8), node("tight", 1), opened, wanted), NOW)
    assert plan.placements[0].replicas[0].devices == (DeviceShare(uuid="wide-3", thousandths=500),)


def test_a_share_never_spans_devices() -> None:
    wanted = session(500)
    allocations = (held("a", ("a-0", 600), ("a-1", 700)),)
    plan = schedule(cluster(node(), *allocations, wanted), NOW)
    assert not plan.placements
    assert reason(plan, wanted) == "needs 0.5 GPU on one node; no GPU has 0.5 free"


def test_a_whole_gpu_is_never_a_shared_one() -> None:
    wanted = session(2000)
    plan = schedule(cluster(node(), held("a", ("a-0", 1)), wanted), NOW)
    assert not plan.placements
    assert reason(plan, wanted) == "needs 2 GPUs on one node; most free on one node: 1 (node a)"


@pytest.mark.parametrize("gpu", [500, 1000])
def test_free_gpus_without_cores_are_not_told_to_be_short(gpu: int) -> None:
    wanted = session(gpu, cpu=3000)
    nodes = [node(name, 1) for name in ("a", "b", "c")]
    taken = [held("a", ("a-0", 1000)), held("b", ("b-0", 1000)), held("c", cpu=6000)]
    plan = schedule(cluster(*nodes, *taken, wanted), NOW)
    assert reason(plan, wanted).endswith("; where GPUs are free, at most 2 cores are free (node c)")


def test_all_that_is_short_on_a_node_is_named() -> None:
    wanted = session(2000, cpu=2000)
    taken = held("a", ("a-0", 1000), cpu=1500)
    plan = schedule(cluster(node("a", 2, cpu=2000), taken, wanted), NOW)
    assert reason(plan, wanted) == (
        "needs 2 GPUs, 2 cores on one node; most free on one node: 1 (node a) and at most 0.5 cores are free (node a)"
    )
    shortages = {one.what: one.nodes for one in plan.deferrals[0].explanation.shortages}
    assert shortages == {"GPUs and cores": 1}


def test_first_come_first_served_and_small_ones_pass() -> None:
    first, large, small = session(1000), session(2000), session(1000)
    plan = schedule(cluster(node(), small, large, first), NOW)
    assert places(plan) == {first.id: ["a"], small.id: ["a"]}
    assert [d.place for d in plan.deferrals] == [1]


def test_a_gang_is_placed_whole_or_not() -> None:
    gang = session(2000, replicas=3)
    assert not schedule(cluster(node("a"), node("b"), gang), NOW).placements
    plan = schedule(cluster(node("a"), node("b"), node("c"), gang), NOW)
    assert sorted(places(plan)[gang.id]) == ["a", "b", "c"]
    assert [replica.rank for replica in plan.placements[0].replicas] == [0, 1, 2]


def test_a_gang_takes_few_nodes() -> None:
    gang = session(1000, replicas=5)
    nodes = (node("a", 2), node("b", 4), node("c", 2), node("d", 1))
    taken = Counter(places(schedule(cluster(*nodes, gang), NOW))[gang.id])
    assert taken == {"b": 4, "d": 1}


def test_a_gang_stays_in_the_pod_where_it_fits() -> None:
    gang = session(1000, replicas=4)
    nodes = (
        node("a", 3, pod="x"),
        node("b", 2, pod="y"),
        node("c", 2, pod="y"),
        node("d", 3, pod="z"),
    )
    assert set(places(schedule(cluster(*nodes, gang), NOW))[gang.id]) == {"b", "c"}


def test_a_gang_crosses_pods_when_it_must() -> None:
    gang = session(1000, replicas=4)
    nodes = (node("a", 2, pod="x"), node("b", 2, pod="y"))
    assert set(places(schedule(cluster(*nodes, gang), NOW))[gang.id]) == {"a", "b"}


def test_a_gang_has_equal_gpu_models() -> None:
    gang = session(1000, replicas=4)
    nodes = (node("a", 2, model="old"), node("b", 2, model="new"))
    assert not schedule(cluster(*nodes, gang), NOW).placements


def test_a_node_without_isolation_takes_its_owners_sessions_only() -> None:
    mine = node("a", 1, isolation=Isolation.NONE, owner="kim")
    own, other = session(owner="kim"), session(owner="lee")
    plan = schedule(cluster(mine, other, own), NOW)
    assert places(plan) == {own.id: ["a"]}
    assert "owner" in plan.deferrals[0].explanation.shortages[0].what


def test_a_node_that_cannot_keep_users_apart_says_whose_sessions_it_runs() -> None:
    why = "its agent has neither root nor a container engine"
    shared = node("a", 1, owner="kim", only_owner=why)
    own, other = session(owner="kim"), session(owner="lee")
    plan = schedule(cluster(shared, other, own), NOW)
    assert places(plan) == {own.id: ["a"]}
    [deferral] = plan.deferrals
    assert not deferral.explanation.can_ever_fit
    assert f"node a runs only sessions of kim: {why}" in deferral.explanation.reason
    # one that keeps users apart is all that it takes
    assert places(schedule(cluster(shared, node("b", 1), other), NOW)) == {other.id: ["b"]}


def test_a_session_with_an_image_goes_where_containers_run() -> None:
    torch = session(spec={"image": "torch:2"})
    nodes = (node("plain", 1), node("engine", 8, isolation=Isolation.CONTAINER))
    assert places(schedule(cluster(*nodes, torch), NOW)) == {torch.id: ["engine"]}
    full = held("engine", *[(f"engine-{i}", 1000) for i in range(8)])
    plan = schedule(cluster(*nodes, full, torch), NOW)
    assert not plan.placements
    shortages = {one.what: one.nodes for one in plan.deferrals[0].explanation.shortages}
    assert shortages == {"GPUs": 1, "runs no containers": 1}


def test_a_session_with_packages_of_conda_goes_where_they_are_installed() -> None:
    wanted = session(spec={"needs_conda": True})
    nodes = (node("plain", 8), node("able", 1, abilities=("CONDA",)))
    assert places(schedule(cluster(*nodes, wanted), NOW)) == {wanted.id: ["able"]}
    plan = schedule(cluster(*nodes, held("able", ("able-0", 1000)), wanted), NOW)
    assert not plan.placements
    shortages = {one.what: one.nodes for one in plan.deferrals[0].explanation.shortages}
    assert shortages == {"GPUs": 1, "has no micromamba": 1}


def test_a_session_goes_where_the_disk_could_hold_its_datasets() -> None:
    one = DatasetVersion(owner="kim", name="large", version=1, digest="a" * 64, size_bytes=50)
    # Versions may share all their files; what is streamed or in place is not fetched.
    more = [
        replace(one, folder="again", streamed=True),
        replace(one, version=2, digest="b" * 64, size_bytes=60),
        replace(one, name="far", digest="c" * 64, streamed=True),
        replace(one, name="there", digest="d" * 64, in_place="/data"),
    ]
    wanted = session(spec={"datasets": (one, *more[:3])})
    nodes = (node("small", 8, data_bytes=59), node("able", 1, data_bytes=60))
    assert places(schedule(cluster(*nodes, wanted), NOW)) == {wanted.id: ["able"]}
    assert places(schedule(cluster(node("old"), wanted), NOW)) == {wanted.id: ["old"]}
    plan = schedule(cluster(*nodes, held("able", ("able-0", 1000)), wanted), NOW)
    shortages = {one.what: one.nodes for one in plan.deferrals[0].explanation.shortages}
    assert shortages == {"GPUs": 1, "has a disk too small for its datasets": 1}
    assert data_bytes([one, more[0]]) == data_bytes([more[0], one]) == 50
    assert data_bytes(more[2:]) == 0
    assert data_bytes([more[1], replace(one, owner="lee")]) == 110


def test_an_image_where_no_node_runs_containers() -> None:
    torch = session(spec={"image": "torch:2"})
    plan = schedule(cluster(node(), torch), NOW)
    assert reason(plan, torch) == "needs 1 GPU in a container on one node; no node runs containers"
    assert not plan.deferrals[0].explanation.can_ever_fit


@pytest.mark.parametrize("state", ["draining", "silent"])
def test_draining_and_silent_nodes_take_nothing(state: str) -> None:
    wanted = session()
    snapshot = cluster(
        node("a", draining=state == "draining"),
        wanted,
        silent=("a",) if state == "silent" else (),
    )
    plan = schedule(snapshot, NOW)
    assert not plan.placements
    said = {"draining": "node a is drained by root", "silent": "1 node is silent"}
    assert said[state] in reason(plan, wanted)


def test_what_was_put_off_waits() -> None:
    wanted = session(not_before=NOW + 5)
    plan = schedule(cluster(node(), wanted), NOW)
    assert reason(plan, wanted) == "its last attempt did not succeed; the next one begins in 5 s"
    assert schedule(cluster(node(), wanted), NOW + 5).placements


def test_default_resources_are_the_nodes_share() -> None:
    plan = schedule(cluster(node(gpus=4, cpu=6000, memory=40 * GIB), session(2000)), NOW)
    given_ = plan.placements[0].replicas[0].resources
    assert (given_.cpu_thousandths, given_.memory_bytes) == (2000, 20 * GIB)
    plan = schedule(cluster(node(gpus=8, cpu=2000, memory=8 * GIB), session(1000)), NOW)
    assert plan.placements[0].replicas[0].resources.cpu_thousandths == 250


def test_default_resources_are_at_most_those_of_nsml() -> None:
    plan = schedule(cluster(node(gpus=1, cpu=64_000, memory=512 * GIB), session(1000)), NOW)
    given_ = plan.placements[0].replicas[0].resources
    assert (given_.cpu_thousandths, given_.memory_bytes) == (2000, 24_000_000_000)


def test_without_a_gpu_it_is_one_gpus_share_or_a_quarter() -> None:
    plan = schedule(cluster(node(gpus=8, cpu=4000), session(0)), NOW)
    assert plan.placements[0].replicas[0].resources.cpu_thousandths == 500
    plan = schedule(cluster(node(gpus=0, cpu=4000), session(0)), NOW)
    assert plan.placements[0].replicas[0].resources.cpu_thousandths == 1000


def test_a_gang_goes_where_its_replicas_have_a_network_in_common() -> None:
    gang, alone = session(replicas=2), session()
    shut = node("shut", 8, gang_network="none")
    there = [node("a", 1, gang_network="overlay:x"), node("b", 1), node("c", 1)]
    placed = places(schedule(cluster(shut, *there, gang), NOW))
    assert sorted(placed[gang.id]) == ["b", "c"]
    assert places(schedule(cluster(shut, alone), NOW)) == {alone.id: ["shut"]}
    waiting = schedule(cluster(shut, *there[:2], gang), NOW)
    assert places(waiting) == {}
    assert "can never" not in reason(waiting, gang)


def test_a_gang_is_in_containers_or_without_all_of_it() -> None:
    gang = session(replicas=2)
    contained = [node(name, 1, isolation=Isolation.CONTAINER) for name in ("a", "d")]
    plain = [node("b", 1), node("c", 1)]
    assert places(schedule(cluster(contained[0], *plain, gang), NOW)) == {gang.id: ["b", "c"]}
    assert places(schedule(cluster(plain[0], *contained, gang), NOW)) == {gang.id: ["a", "d"]}
    torn = schedule(cluster(contained[0], plain[0], gang), NOW)
    assert not torn.placements
    why = "since all replicas of a gang run either in containers or without"
    alone = "at most 1 replica fits together: 1 node with 1 GPU"
    assert reason(torn, gang) == f"needs 2 x 1 GPU; {alone}, {why}"
    now = schedule(cluster(*contained, plain[0], held("d", ("d-0", 1000)), gang), NOW)
    assert not now.placements
    words = f"needs 2 x 1 GPU, all at once; there is room for 1 now, {why}"
    assert reason(now, gang) == words
    wide = session(replicas=8)
    assert why not in reason(schedule(cluster(*contained, *plain, wide), NOW), wide)


def test_a_gang_where_no_node_gives_it_a_network() -> None:
    gang = session(replicas=2)
    plan = schedule(cluster(node("a", 8, gang_network="none"), gang), NOW)
    assert reason(plan, gang) == "needs 2 x 1 GPU; no node gives gangs a network"
    nodes = [node("a", 8, gang_network="none"), node("b", 1)]
    plan = schedule(cluster(*nodes, gang), NOW)
    assert reason(plan, gang) == "needs 2 x 1 GPU; too few nodes give gangs a network"
    wide = session(9000, replicas=2)
    plan = schedule(cluster(*nodes, wide), NOW)
    words = "needs 2 x 9 GPUs; no node has 9 GPUs; the largest has 8 (node a)"
    assert reason(plan, wide) == words
    wide = session(8000, replicas=2)
    plan = schedule(cluster(*nodes, wide), NOW)
    words = "no node that gives gangs a network has 8 GPUs; the largest has 1 (node b)"
    assert reason(plan, wide) == f"needs 2 x 8 GPUs; {words}"
    plan = schedule(cluster(nodes[0], wide), NOW)
    assert reason(plan, wide) == "needs 2 x 8 GPUs; 1 node gives gangs no network"


def test_what_never_fits_is_said_so() -> None:
    wanted = session(9000)
    plan = schedule(cluster(node(), wanted), NOW)
    assert not plan.deferrals[0].explanation.can_ever_fit
    assert reason(plan, wanted) == (
        "needs 9 GPUs on one node; no node has 9 GPUs; the largest has 2 (node a)"
    )
    assert reason(schedule(cluster(wanted), NOW), wanted) == "no node has registered yet"


def test_a_gang_wider_than_every_model_never_fits() -> None:
    wanted = session(1000, replicas=3)
    plan = schedule(cluster(node("a", model="M"), node("b", model="N"), wanted), NOW)
    assert not plan.deferrals[0].explanation.can_ever_fit
    assert reason(plan, wanted) == (
        "needs 3 x 1 GPU; at most 2 replicas fit together: 1 node with 2 GPUs, since all of a gang"
        " is on GPUs of one model"
    )
    nodes = (node("a", model="M"), node("b", model="N"), node("c", model="M"))
    full = held("a", ("a-0", 1000), ("a-1", 1000))
    plan = schedule(cluster(*nodes, full, wanted), NOW)
    assert plan.deferrals[0].explanation.can_ever_fit
    assert reason(plan, wanted) == "needs 3 x 1 GPU, all at once; there is room for 2 now"
    without = session(0, replicas=3, cpu=6000)
    assert len(schedule(cluster(*nodes, without), NOW).placements[0].replicas) == 3


def test_what_wants_a_container_is_told_plainly_what_keeps_it() -> None:
    wanted = session(0, spec={"image": "lab/x"})
    contained = {"isolation": Isolation.CONTAINER}
    nodes = [node("a", draining=True, **contained), node("b"), node("c"), node("d", **contained)]
    full = held("d", ("d-0", 1000), cpu=8000)
    told = reason(schedule(cluster(*nodes[:2], wanted), NOW), wanted)
    assert told == (
        "needs a node that runs containers, and a share of its cores; 1 node is drained,"
        " 1 runs no containers; node a is drained by root"
    )
    told = reason(schedule(cluster(*nodes[:3], wanted), NOW), wanted)
    assert "; 2 nodes run no containers, 1 is drained; node a" in told
    told = reason(schedule(cluster(*nodes, full, wanted), NOW), wanted)
    assert "its cores; no core is free; node a" in told
    told = reason(schedule(cluster(nodes[0], node("e", draining=True), wanted), NOW), wanted)
    assert "; no node takes sessions now (2 nodes are drained); node" in told


def test_the_default_share_is_told_once() -> None:
    full = held("a", ("a-0", 1000), cpu=4000)
    wanted = session(0)
    told = reason(schedule(cluster(node(cpu=4000), full, wanted), NOW), wanted)
    assert told == "needs a share of a node's cores; no core is free"


def test_less_than_the_default_share_is_advised_where_it_would_fit() -> None:
    # The share of a node without devices is a quarter of it: 1 core and 16 GiB.
    wanted = session(0)
    most = held("a", cpu=3500, memory=63 * GIB)
    told = reason(schedule(cluster(node(gpus=0, cpu=4000), most, wanted), NOW), wanted)
    assert told == (
        "needs a share of a node's cores; at most 0.5 cores are free (node a)"
        " and at most 1 GiB of memory are free (node a); it would fit with -c 0.5 --memory 1G"
    )
    cores = held("a", cpu=3500)
    told = reason(schedule(cluster(node(gpus=0, cpu=4000), cores, wanted), NOW), wanted)
    assert told.endswith("cores are free (node a); it would fit with -c 0.5")
    full = held("a", cpu=4000, memory=64 * GIB)
    told = reason(schedule(cluster(node(gpus=0, cpu=4000), full, wanted), NOW), wanted)
    assert told.endswith("; no core is free and no memory is free")
    asked = session(0, cpu=1000)
    told = reason(schedule(cluster(node(gpus=0, cpu=4000), cores, asked), NOW), asked)
    assert told.endswith("; at most 0.5 cores are free (node a)")


def test_one_core_is_one() -> None:
    wanted = session(0, cpu=1000)
    full = held("a", ("a-0", 1000), cpu=4000)
    told = reason(schedule(cluster(node(cpu=4000), full, wanted), NOW), wanted)
    assert told == "needs 1 core on one node; no core is free"
    wanted = session(0, cpu=2000)
    full = held("a", ("a-0", 1000), cpu=3000)
    told = reason(schedule(cluster(node(cpu=4000), full, wanted), NOW), wanted)
    assert told == "needs 2 cores on one node; at most 1 core is free (node a)"


def test_much_memory_is_told_in_digits() -> None:
    wanted = session(0, memory=999 << 40)
    plan = schedule(cluster(node(), wanted), NOW)
    assert reason(plan, wanted).startswith("needs 1,022,976 GiB of memory on one node;")


def test_cores_and_memory_are_respected() -> None:
    wanted = session(1000, cpu=5000)
    plan = schedule(cluster(node(), held("a", ("a-0", 1000), cpu=4000), wanted), NOW)
    assert "at most 4 cores are free (node a)" in reason(plan, wanted)
    wanted = session(1000, memory=40 * GIB)
    plan = schedule(cluster(node(), held("a", memory=30 * GIB), wanted), NOW)
    assert "at most 34 GiB of memory are free (node a)" in reason(plan, wanted)


NODES = st.lists(
    st.builds(
        lambda gpus, cpu, pod, isolation, owner, draining, model: (
            gpus,
            {
                "cpu": cpu,
                "pod": pod,
                "isolation": isolation,
                "owner": owner,
                "draining": draining,
                "model": model,
            },
        ),
        st.integers(0, 8),
        st.integers(1, 16).map(lambda cores: cores * 1000),
        st.sampled_from(["", "x", "y"]),
        st.sampled_from([Isolation.NONE, Isolation.NAMESPACE, Isolation.CONTAINER]),
        st.sampled_from(["kim", "lee"]),
        st.booleans(),
        st.sampled_from(["old", "new"]),
    ),
    max_size=6,
)
SESSIONS = st.lists(
    st.builds(
        lambda gpu, replicas, cpu, owner, image: session(
            gpu, replicas, cpu=cpu, owner=owner, spec={"image": image}
        ),
        st.sampled_from([0, 1, 100, 250, 500, 999, 1000, 2000, 4000, 8000]),
        st.sampled_from([1, 1, 1, 2, 3, 8]),
        st.sampled_from([0, 0, 500, 3000]),
        st.sampled_from(["kim", "lee"]),
        st.sampled_from(["", "", "torch:2"]),
    ),
    max_size=12,
)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    nodes = [node(f"n{i}", gpus, **facts) for i, (gpus, facts) in enumerate(draw(NODES))]
    allocations = []
    for one in nodes:
        shares = [
            (device.uuid, draw(st.sampled_from([0, 0, 1, 500, 1000]))) for device in one.devices
        ]
        allocations.append(held(one.name, *[share for share in shares if share[1]]))
    silent = tuple(one.name for one in nodes if draw(st.integers(0, 9)) == 0)
    return cluster(*nodes, *allocations, *draw(SESSIONS), silent=silent)


@settings(max_examples=examples(200), deadline=None)
@given(clusters())
def test_a_plan_is_sound(snapshot: ClusterSnapshot) -> None:
    plan = schedule(snapshot, NOW)
    assert schedule(snapshot, NOW) == plan
    used: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for placement in plan.placements:
        wanted = snapshot.queued[placement.session_id]
        assert [r.rank for r in placement.replicas] == list(range(wanted.spec.replica_count))
        assert len({r.resources.gpu_thousandths for r in placement.replicas}) == 1
        kinds = {snapshot.nodes[r.node].node.isolation for r in placement.replicas}
        assert len({kind is Isolation.CONTAINER for kind in kinds}) == 1
        for replica in placement.replicas:
            capacity = snapshot.nodes[replica.node]
            assert takes_sessions(capacity)
            target: Node = capacity.node
            assert target.isolation is not Isolation.NONE or target.owner == wanted.owner
            assert target.isolation is Isolation.CONTAINER or not wanted.spec.image
            total = sum(share.thousandths for share in replica.devices)
            assert total == wanted.spec.resources.gpu_thousandths
            assert len(replica.devices) == -(-wanted.spec.resources.gpu_thousandths // 1000)
            for share in replica.devices:
                used[share.uuid] += share.thousandths
                whole = share.thousandths == 1000
                assert not whole or capacity.free[share.uuid] == 1000
            if not wanted.spec.resources.cpu_thousandths:
                assert replica.resources.cpu_thousandths <= 2000
            cpu[replica.node] += replica.resources.cpu_thousandths
            memory[replica.node] += replica.resources.memory_bytes
    for name, capacity in snapshot.nodes.items():
        for uuid, free in capacity.free.items():
            assert used[uuid] <= free
        assert cpu[name] <= max(capacity.free_cpu_thousandths, 0)
        assert memory[name] <= max(capacity.free_memory_bytes, 0)
    placed = {one.session_id for one in plan.placements}
    waiting = {one.session_id for one in plan.deferrals}
    assert placed | waiting == snapshot.queued.keys()
    assert not placed & waiting
    assert [d.place for d in plan.deferrals] == list(range(1, len(waiting) + 1))


@settings(max_examples=examples(100), deadline=None)
@given(clusters())
def test_what_waits_does_not_fit_what_is_left(snapshot: ClusterSnapshot) -> None:
    """No hole is left that a waiting session fits into."""
    plan = schedule(snapshot, NOW)
    allocations = {
        name: list(capacity.allocation.replicas) for name, capacity in snapshot.nodes.items()
    }
    for placement in plan.placements:
        for replica in placement.replicas:
            resources = replica.resources
            allocations[replica.node].append(
                held(
                    replica.node,
                    *[(share.uuid, share.thousandths) for share in replica.devices],
                    cpu=resources.cpu_thousandths,
                    memory=resources.memory_bytes,
                ).replicas[0]
            )
    after = cluster(
        *[capacity.node for capacity in snapshot.nodes.values()],
        *[
            Allocation(node=name, replicas=tuple(replicas))
            for name, replicas in allocations.items()
        ],
        *[snapshot.queued[one.session_id] for one in plan.deferrals],
        silent=tuple(snapshot.silent),
    )
    assert not schedule(after, NOW).placements


def test_a_node_takes_so_many_replicas_however_small_they_are() -> None:
    small = {"gpu": 0, "cpu": 1, "memory": 1}
    there = tuple(
        AllocatedReplica(session_id=f"s{number}", attempt=1, rank=0, cpu_thousandths=1)
        for number in range(MOST_ON_ONE_NODE - 3)
    )
    gang, one, last = session(replicas=2, **small), session(**small), session(**small)
    plan = schedule(cluster(node(), Allocation(node="a", replicas=there), gang, one, last), NOW)
    assert places(plan) == {gang.id: ["a", "a"], one.id: ["a"]}
    assert reason(plan, last).endswith("1 node is full of small replicas")
    one_short = Allocation(node="a", replicas=there[:2] + there)
    assert not schedule(cluster(node(), one_short, gang), NOW).placements


def test_a_small_node_takes_fewer_replicas_for_what_supervises_them() -> None:
    """Of 64 GiB as many as of any; of 6.4 GB a tenth: each has processes beside it that count for nobody."""
    assert most_on(node()) == MOST_ON_ONE_NODE
    small = replace(node(), capacity=Resources(cpu_thousandths=8000, memory_bytes=1 << 30))
    ones = [session(gpu=0, cpu=1, memory=6 << 20) for _ in range(17)]
    plan = schedule(cluster(small, *ones), NOW)
    assert [len(places(plan)), most_on(small)] == [16, 16]
    assert reason(plan, ones[-1]).endswith("1 node is full of small replicas")


def test_a_share_of_cores_and_memory_is_not_named_where_its_gpus_lack() -> None:
    full = held("a", ("a-0", 1000), ("a-1", 1000), cpu=8000)
    wanted = session(1000)
    told = reason(schedule(cluster(node(), full, wanted), NOW), wanted)
    assert told == "needs 1 GPU on one node; no whole GPU is free"
    wanted = session(1000, cpu=1000)
    told = reason(schedule(cluster(node(), full, wanted), NOW), wanted)
    assert told.endswith("on one node; no whole GPU is free and no core is free")
