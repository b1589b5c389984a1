"""GPU models, pods and networks that sessions ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import SessionChanged, SessionRemoved
from controlplane.domain.models import is_model
from controlplane.domain.plan import Plan
from controlplane.domain.values import (
    DatasetVersion,
    Device,
    Drain,
    Isolation,
    Network,
    Node,
    Priority,
    Session,
    SessionSpec,
    SessionStage,
)
from controlplane.scheduler import ClusterIndex, can_ever_fit, request_of
from controlplane.scheduler.fragmentation import FIRST_MIX
from tests.support.examples import examples
from tests.unit.controlplane.builders import GIB, cluster, held, node, session
from tests.unit.controlplane.snapshot import schedule

NOW = 1_000_000.0
A100, V100, P40 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "Tesla P40"


def mixed(name: str, *models: str, **facts: object) -> Node:
    """A node whose devices are of these models."""
    devices = tuple(
        Device(uuid=f"{name}-{index}", index=index, model=model)
        for index, model in enumerate(models)
    )
    return replace(node(name, len(models), **facts), devices=devices)


def wants(gpu: int = 1000, replicas: int = 1, **facts: object) -> Session:
    spec = {
        key: facts.pop(key)
        for key in ("gpu_model", "pod", "network", "stage", "datasets")
        if key in facts
    }
    return session(gpu, replicas, spec=spec, **facts)


def places(plan: Plan) -> list[str]:
    return [replica.node for one in plan.placements for replica in one.replicas]


def reason(plan: Plan) -> str:
    [deferral] = plan.deferrals
    return deferral.explanation.reason


def test_only_the_idle_class_and_who_says_so_may_be_ended_without_a_save() -> None:
    may = [SessionSpec(priority=one).may_be_preempted for one in Priority]
    assert may == [True, False, False, False]
    assert SessionSpec(priority=Priority.HIGH, preemptible=True).may_be_preempted


def test_a_model_is_kept_to_though_another_fits_tighter() -> None:
    nodes = (node("tight", 1, model=V100), node("wide", 8, model=A100))
    assert places(schedule(cluster(*nodes, wants(gpu_model="a100")), NOW)) == ["wide"]


def test_of_several_models_any_does_and_a_gang_has_one_of_them() -> None:
    nodes = (node("a", 1, model=P40), node("b", 2, model=V100), node("c", 3, model=A100))
    either = "A100|V100"
    assert places(schedule(cluster(*nodes, wants(gpu_model=either)), NOW)) == ["b"]
    assert places(schedule(cluster(*nodes, wants(1000, 3, gpu_model=either)), NOW)) == ["c"] * 3
    plan = schedule(cluster(*nodes, wants(1000, 4, gpu_model=either)), NOW)
    assert not plan.placements
    assert not plan.deferrals[0].explanation.can_ever_fit


def test_a_model_that_many_ask_for_is_spared_for_them() -> None:
    """The mix knows for which models requests come: who takes any gets what they have no use for."""
    wide = node("wide", 8, model=V100, cpu=64_000, memory=512 * GIB)
    index = ClusterIndex.of(cluster(node("tight", 1, model=A100), wide))
    for one in [wants(gpu_model="A100|H100", id=f"s{number}") for number in range(FIRST_MIX)]:
        index.apply([SessionChanged(session=one), SessionRemoved(session_id=one.id)])
    index.apply([SessionChanged(session=wants(id="any"))])
    assert places(index.plan(NOW)) == ["wide"]


def test_a_pod_is_kept_to_though_another_fits_tighter() -> None:
    nodes = (node("tight", 1, pod="x"), node("alone", 1), node("wide", 8, pod="y"))
    assert places(schedule(cluster(*nodes, wants(pod="y")), NOW)) == ["wide"]


@pytest.mark.parametrize(("gpu", "ever"), [(500, True), (1000, True), (2000, True), (3000, False)])
def test_of_a_node_of_several_models_only_devices_of_that_model_count(gpu: int, ever: bool) -> None:
    several = mixed("a", V100, A100, V100, A100)
    wanted = wants(gpu, gpu_model="A100")
    assert can_ever_fit([several], request_of("kim", wanted.spec)) is ever
    placements = schedule(cluster(several, wanted), NOW).placements
    shares = [share for one in placements for replica in one.replicas for share in replica.devices]
    assert {share.uuid for share in shares} <= {"a-1", "a-3"}
    assert sum(share.thousandths for share in shares) == (gpu if ever else 0)


def test_a_share_opens_a_device_of_its_model_beside_one_that_is_open() -> None:
    open_one = held("a", ("a-0", 500))
    plan = schedule(cluster(mixed("a", V100, A100), open_one, wants(500, gpu_model="A100")), NOW)
    assert plan.placements[0].replicas[0].devices[0].uuid == "a-1"


def test_a_gang_of_a_model_takes_it_from_nodes_of_one_and_of_several() -> None:
    nodes = (mixed("a", V100, A100), node("b", 1, model=A100), node("c", 2, model=V100))
    plan = schedule(cluster(*nodes, wants(1000, 2, gpu_model="A100")), NOW)
    assert sorted(places(plan)) == ["a", "b"]
    assert not schedule(cluster(*nodes, wants(1000, 3, gpu_model="A100")), NOW).placements


def test_a_gang_of_one_pod_does_not_leave_it() -> None:
    nodes = (node("a", 2, pod="x"), node("b", 2, pod="y"), node("c", 2, pod="x"))
    plan = schedule(cluster(*nodes, wants(1000, 4, pod="x")), NOW)
    assert sorted(places(plan)) == ["a", "a", "c", "c"]
    assert not schedule(cluster(*nodes, wants(1000, 5, pod="x")), NOW).placements


def test_why_it_waits_counts_the_nodes_of_other_models_and_pods() -> None:
    nodes = (node("a", 2, model=A100), node("b", 2, model=V100), node("c", 2, model=P40))
    full = held("a", ("a-0", 1000), ("a-1", 400))
    plan = schedule(cluster(*nodes, full, wants(gpu_model="A100")), NOW)
    assert reason(plan) == "needs 1 A100 GPU on one node; no whole A100 GPU is free"
    [deferral] = plan.deferrals
    assert [(one.what, one.nodes) for one in deferral.explanation.shortages] == [
        ("has no such GPU", 2),
        ("GPUs", 1),
    ]

    pods = (node("a", pod="x", draining=True), node("b", pod="y"), node("c"))
    plan = schedule(cluster(*pods, wants(2000, pod="x")), NOW)
    words = "needs 2 GPUs on one node in pod x; 2 nodes are in other pods, 1 is drained"
    assert reason(plan).startswith(words)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (
            {"gpu_model": "H100"},
            f"no node has GPU model H100; there are: {A100} (1 node), {V100} (1 node)",
        ),
        ({"pod": "z"}, "there is no pod z; there are: x (1 node), y (1 node)"),
        (
            {"gpu_model": "V100", "pod": "x"},
            f"no node in pod x has GPU model V100; there are: {A100} (1 node)",
        ),
        (
            {"gpu_model": "V100", "pod": "y"},
            "no node in pod y has 3 V100 GPUs; the largest has 2 (node b)",
        ),
    ],
)
def test_why_it_can_never_be_placed_names_the_model_or_the_pod(
    wish: dict[str, str], words: str
) -> None:
    nodes = (node("a", 4, model=A100, pod="x"), node("b", 2, model=V100, pod="y"))
    plan = schedule(cluster(*nodes, wants(3000, **wish)), NOW)
    assert reason(plan).endswith(f"; {words}")
    assert not plan.deferrals[0].explanation.can_ever_fit


def test_a_dataset_in_place_is_where_its_folder_is() -> None:
    def reads(*paths: str) -> Session:
        versions = (
            DatasetVersion(owner="kim", name=f"d{at}", version=1, digest="1" * 64, in_place=path)
            for at, path in enumerate(paths)
        )
        return session(1000, spec={"datasets": tuple(versions)})

    nodes = (
        node("a", 1),  # of an older agent
        node("b", 4, shared_roots=("/shared", "/more")),
        node("c", 4, shared_roots=("/shared2",)),
        node("d", 4, shared_roots=("/shared",)),
    )
    assert places(schedule(cluster(*nodes, reads("/shared/x", "/more")), NOW)) == ["b"]
    assert places(schedule(cluster(*nodes, reads("/shared2/x")), NOW)) == ["c"]
    assert places(schedule(cluster(*nodes, reads()), NOW)) == ["a"]
    plan = schedule(cluster(*nodes, reads("/other/x")), NOW)
    assert "no node has /other/x, where a dataset of it is in place" in reason(plan)
    assert not plan.deferrals[0].explanation.can_ever_fit
    plan = schedule(cluster(*nodes, reads("/shared2/x", "/shared/y")), NOW)
    assert "no node has /shared/y and /shared2/x" in reason(plan)


OWN, BOTH, SHARED = (Network.OWN,), (Network.OWN, Network.HOST), (Network.HOST,)


def test_only_a_node_that_gives_a_network_gets_a_session_that_asks_for_it() -> None:
    nodes = (
        node("a", 1),  # of an older agent, which would not look at what is asked for
        node("b", 2, networks=OWN),
        node("c", 4, networks=BOTH),
        node("d", 8, networks=SHARED),
    )
    two = [wants(network=Network.HOST, id=f"s{number}") for number in range(12)]
    assert set(places(schedule(cluster(*nodes, *two), NOW))) == {"c", "d"}
    assert places(schedule(cluster(*nodes, wants(network=Network.OWN)), NOW)) == ["b"]
    assert places(schedule(cluster(*nodes, wants()), NOW)) == ["a"]
    # nodes that differ in nothing else are not taken for one another
    alike = (node("a", networks=OWN), node("b", networks=BOTH), node("c", networks=OWN))
    assert places(schedule(cluster(*alike, wants(network=Network.HOST)), NOW)) == ["b"]


@pytest.mark.parametrize("level", Isolation)
def test_only_a_node_that_keeps_sessions_apart_runs_one_without_a_network(level: Isolation) -> None:
    offers = (Network.OWN, Network.NONE)
    nodes = (node("a", 1, networks=OWN), node("b", 2, networks=offers, isolation=level))
    plan = schedule(cluster(*nodes, wants(network=Network.NONE)), NOW)
    if level in {Isolation.NAMESPACE, Isolation.CONTAINER}:
        assert places(plan) == ["b"]
        return
    assert not plan.placements
    assert reason(plan) == (
        "needs 1 GPU on one node with no network; no node can run sessions without a network"
    )


@pytest.mark.parametrize("stage", SessionStage)
def test_a_step_of_a_submission_goes_where_it_is_confined(stage: SessionStage) -> None:
    older = node("a", 1, networks=OWN, isolation=Isolation.NAMESPACE)
    newer = node("b", 2, networks=(*OWN, Network.NONE), isolation=Isolation.NAMESPACE)
    asked = wants(stage=stage, network=Network.OWN)
    confined = stage is not SessionStage.INFER
    assert places(schedule(cluster(older, newer, asked), NOW)) == ["b" if confined else "a"]
    alone = schedule(cluster(older, asked), NOW)
    assert places(alone) == ([] if confined else ["a"])
    if confined:
        assert reason(alone).endswith("; no node can run sessions without a network")


@pytest.mark.parametrize(
    ("stage", "owner", "placed"),
    [
        (SessionStage.PREDICT, "lee", []),
        (SessionStage.PREDICT, "kim", ["a"]),
        (SessionStage.PREDICT_TEST, "lee", ["a"]),
        (SessionStage.EVALUATE, "lee", ["a"]),
    ],
)
def test_hidden_data_of_another_user_is_on_no_machine_of_who_may_not_see_it(
    stage: SessionStage, owner: str, placed: list[str]
) -> None:
    facts = {"isolation": Isolation.NAMESPACE, "networks": (Network.NONE,)}
    own = node("a", owner="kim", only_owner="the agent is not root", **facts)
    data = DatasetVersion(owner=owner, name="digits", version=1, digest="a" * 64)
    asked = wants(stage=stage, datasets=(data,), owner="kim")
    plan = schedule(cluster(own, asked), NOW)
    assert places(plan) == placed
    if not placed:
        assert "keeps no data from its owner" in reason(plan)
    others = node("b", **facts)
    if not placed:
        assert places(schedule(cluster(own, others, asked), NOW)) == ["b"]


def test_a_gang_has_the_network_of_gangs() -> None:
    nodes = (node("a", 1), node("b", 1), node("c", 1, gang_network="overlay:x", networks=BOTH))
    asks = {network: wants(1000, 2, network=network) for network in Network}
    assert places(schedule(cluster(*nodes, asks[Network.HOST]), NOW)) == ["a", "b"]
    plan = schedule(cluster(*nodes, asks[Network.OWN]), NOW)
    assert not plan.placements
    assert reason(plan) == (
        "needs 2 x 1 GPU with a network of its own;"
        " at most 1 replica fits together: 1 node with 1 GPU"
    )
    plan = schedule(cluster(*nodes[:2], asks[Network.OWN]), NOW)
    assert reason(plan).endswith("; no node gives gangs an overlay network")


def test_why_it_waits_names_the_network() -> None:
    nodes = (node("a", networks=OWN), node("b", networks=OWN), node("c", networks=BOTH))
    taken = held("c", ("c-0", 1000), ("c-1", 1000))
    plan = schedule(cluster(*nodes, taken, wants(network=Network.HOST)), NOW)
    assert reason(plan) == ("needs 1 GPU on one node with the host network; no whole GPU is free")
    [deferral] = plan.deferrals
    assert [(one.what, one.nodes) for one in deferral.explanation.shortages] == [
        ("does not allow the host network", 2),
        ("GPUs", 1),
    ]
    shut = (*nodes[:2], replace(nodes[2], drain=Drain(asked_by="root")))
    words = "2 nodes do not allow the host network, 1 is drained"
    assert f"with the host network; {words}" in reason(
        schedule(cluster(*shut, wants(network=Network.HOST)), NOW)
    )


@pytest.mark.parametrize(
    ("network", "networks", "gpu", "words"),
    [
        (Network.HOST, (OWN, OWN), 1000, "no node allows the host network"),
        (Network.HOST, ((), ()), 0, "no node allows the host network"),
        (Network.OWN, (SHARED, ()), 0, "no node gives sessions a network of their own"),
        (
            Network.HOST,
            (OWN, BOTH),
            4000,
            "no node that allows the host network has 4 GPUs; the largest has 2 (node b)",
        ),
    ],
)
def test_why_it_can_never_be_placed_names_the_network(
    network: Network, networks: tuple[tuple[Network, ...], ...], gpu: int, words: str
) -> None:
    nodes = (node("a", 4, networks=networks[0]), node("b", 2, networks=networks[1]))
    plan = schedule(cluster(*nodes, wants(gpu, network=network)), NOW)
    assert reason(plan).endswith(f"; {words}")
    assert not plan.deferrals[0].explanation.can_ever_fit


def test_the_hole_is_told_of_the_model_alone() -> None:
    several = mixed("a", V100, A100, V100, A100)
    plan = schedule(cluster(several, held("a", ("a-1", 1)), wants(2000, gpu_model="A100")), NOW)
    assert reason(plan) == "needs 2 A100 GPUs on one node; most free on one node: 1 (node a)"


def test_withheld_devices_of_other_models_are_not_what_it_waits_for() -> None:
    several = mixed("a", V100, A100)
    v100, a100 = several.devices
    taken = held("a", ("a-1", 1000))
    broken = replace(several, devices=(replace(v100, withheld="it failed"), a100))
    assert "withheld" not in reason(schedule(cluster(broken, taken, wants(gpu_model="A100")), NOW))
    broken = replace(several, devices=(v100, replace(a100, withheld="it failed")))
    assert "1 device is withheld" in reason(schedule(cluster(broken, wants(gpu_model="A100")), NOW))


MODELS = st.sampled_from([A100, V100, P40])
PODS = st.sampled_from(["", "x", "y"])
GIVEN = st.sampled_from([(), OWN, BOTH, SHARED])
GANGS = st.sampled_from(["host", "none", "overlay:z"])
NODES = st.lists(
    st.tuples(st.lists(MODELS, max_size=4), PODS, GIVEN, GANGS), min_size=1, max_size=6
)
WISHES = st.lists(
    st.tuples(
        st.sampled_from([250, 500, 1000, 2000]),
        st.integers(1, 3),
        st.sampled_from(["", "A100", "V100", "tesla", "P40|A100"]),
        PODS,
        st.sampled_from([None, None, *Network]),
    ),
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(nodes=NODES, wishes=WISHES)
def test_nobody_gets_another_model_pod_or_network_or_more_than_there_is(
    nodes: list[tuple[list[str], str, tuple[Network, ...], str]],
    wishes: list[tuple[int, int, str, str, Network | None]],
) -> None:
    machines = {
        f"n{number}": mixed(f"n{number}", *models, pod=pod, networks=given, gang_network=gangs)
        for number, (models, pod, given, gangs) in enumerate(nodes)
    }
    asked = [
        wants(gpu, count, gpu_model=model, pod=pod, network=network)
        for gpu, count, model, pod, network in wishes
    ]
    queue = {one.id: one for one in asked}
    plan = schedule(cluster(*machines.values(), *queue.values()), NOW)
    used = Counter[str]()
    for placement in plan.placements:
        spec = queue[placement.session_id].spec
        assert len(placement.replicas) == spec.replica_count
        for replica in placement.replicas:
            machine = machines[replica.node]
            assert spec.pod in ("", machine.pod)
            assert spec.network in (None, *machine.networks_for(spec.replica_count))
            models = {device.uuid: device.model for device in machine.devices}
            for share in replica.devices:
                assert is_model(models[share.uuid], spec.gpu_model)
                used[share.uuid] += share.thousandths
    assert max(used.values(), default=0) <= 1000
    for deferral in plan.deferrals:
        spec = queue[deferral.session_id].spec
        ever = can_ever_fit(machines.values(), request_of("kim", spec))
        assert deferral.explanation.can_ever_fit is ever
