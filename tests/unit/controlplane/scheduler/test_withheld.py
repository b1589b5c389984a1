"""Devices that are withheld, and those that are one another's parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.domain.values import Device, Isolation, Node
from controlplane.scheduler import can_ever_fit, request_of
from tests.unit.controlplane.builders import cluster, held, node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW, places, reason
from tests.unit.controlplane.snapshot import schedule


def withheld(one: Node, *indexes: int, why: str = "it failed") -> Node:
    devices = tuple(
        replace(device, withheld=why) if device.index in indexes else device
        for device in one.devices
    )
    return replace(one, devices=devices)


def cut(one: Node, *, parent: str = "a-0") -> Node:
    """The node with its first device as two MIG instances."""
    parts = tuple(
        Device(uuid=f"MIG-{i}", index=i, model="M MIG 1g.5gb", parent_uuid=parent) for i in (0, 1)
    )
    return replace(one, devices=(*parts, *one.devices[1:]))


def test_nothing_is_placed_on_a_withheld_device() -> None:
    first, second, share = session(), session(), session(500)
    plan = schedule(cluster(withheld(node("a", 2), 0), first, second, share), NOW)
    assert places(plan) == {first.id: ["a"]}
    assert plan.placements[0].replicas[0].devices[0].uuid == "a-1"
    assert {one.session_id for one in plan.deferrals} == {second.id, share.id}


@pytest.mark.parametrize("gpu", [500, 1000])
def test_a_share_of_a_withheld_device_is_not_free(gpu: int) -> None:
    wanted = session(gpu)
    snapshot = cluster(withheld(node("a", 1), 0), held("a", ("a-0", 500)), wanted)
    assert not schedule(snapshot, NOW).placements


def test_who_waits_is_told_of_what_is_withheld() -> None:
    wanted = session(4000)
    snapshot = cluster(
        withheld(node("b", 4), 3, why="the GPU is lost"),
        withheld(node("a", 4), 0, 1, why="process 7 uses it"),
        wanted,
    )
    assert reason(schedule(snapshot, NOW), wanted) == (
        "needs 4 GPUs on one node; most free on one node: 3 (node b); 3 devices are withheld:"
        " GPU 0 of node a (process 7 uses it), GPU 1 of node a (process 7 uses it), ..."
    )


def test_who_waits_for_cores_is_not_told_of_devices() -> None:
    wanted = session(1000, cpu=8000)
    snapshot = cluster(withheld(node("a", 2), 0), held("a", cpu=4000), wanted)
    assert "withheld" not in reason(schedule(snapshot, NOW), wanted)


def test_others_nodes_are_not_told_of() -> None:
    wanted, more = session(), session(500)
    own = withheld(node("a", 1, isolation=Isolation.NONE, owner="lee"), 0)
    snapshot = cluster(own, node("b", 1), held("b", ("b-0", 1000)), wanted, more)
    assert "withheld" not in reason(schedule(snapshot, NOW), wanted)


def test_what_is_withheld_may_come_back() -> None:
    wanted = session(2000)
    one = withheld(node("a", 2), 0, 1)
    assert can_ever_fit([one], request_of("kim", wanted.spec))
    plan = schedule(cluster(one, wanted), NOW)
    assert plan.deferrals[0].explanation.can_ever_fit
    assert not can_ever_fit([one], request_of("kim", session(3000).spec))


def test_a_gang_is_placed_by_the_models_that_are_offered() -> None:
    gang = session(1000, replicas=2)
    other = Device(uuid="x", index=9, model="Other", withheld="it failed")
    mixed = replace(node("a", 1), devices=(*node("a", 1).devices, other))
    plan = schedule(cluster(mixed, node("b", 1), gang), NOW)
    assert sorted(places(plan)[gang.id]) == ["a", "b"]


def test_instances_are_devices() -> None:
    wanted = [session(), session(500), session(500)]
    plan = schedule(cluster(cut(node("a", 1)), *wanted), NOW)
    assert len(plan.placements) == 3


def test_a_replica_has_one_instance_at_most() -> None:
    wanted, gang = session(2000), session(replicas=2)
    plan = schedule(cluster(cut(node("a", 1)), wanted, gang), NOW)
    assert places(plan) == {gang.id: ["a", "a"]}
    assert reason(plan, wanted) == (
        "needs 2 GPUs on one node; no node has 2 GPUs; the largest has 1 (node a);"
        " of MIG instances a replica has one at most"
    )
    assert places(schedule(cluster(cut(node("a", 3)), wanted), NOW)) == {wanted.id: ["a"]}
    mixed = schedule(cluster(cut(node("a", 3)), wanted), NOW).placements[0].replicas[0]
    assert [share.uuid for share in mixed.devices] == ["a-1", "a-2"]


def test_the_largest_hole_counts_no_instances() -> None:
    wanted = session(2000)
    snapshot = cluster(cut(node("a", 3)), held("a", ("a-1", 1000), ("a-2", 1000)), wanted)
    assert "most free on one node: 1 (node a)" in reason(schedule(snapshot, NOW), wanted)


def test_an_instance_of_a_device_that_is_held_is_not_free() -> None:
    """The mode was changed below a session that holds the whole."""
    wanted = session()
    assert not schedule(
        cluster(cut(node("a", 1)), held("a", ("a-0", 1000)), wanted), NOW
    ).placements


def test_a_device_whose_instance_is_held_is_not_free() -> None:
    parted = cut(node("a", 1))
    both = replace(parted, devices=(*node("a", 1).devices, *parted.devices))
    wanted = session(2000)
    assert not schedule(cluster(both, held("a", ("MIG-1", 10)), wanted), NOW).placements
