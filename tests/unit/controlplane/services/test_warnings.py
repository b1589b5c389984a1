"""What goes wrong slowly or unseen is a condition in the answer, and a figure of the metrics."""

from __future__ import annotations

import time

import pytest
import structlog.testing

from controlplane.accounts.feature import joining
from controlplane.domain.identity import AnonymousCaller, Role
from controlplane.gateway.rpcs import CallCounts
from controlplane.health import warning_loop as warning
from controlplane.startup.prometheus_metrics import figures, take
from controlplane.startup.web import known_of
from controlplane.state.members import MEMBERS, Member
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import StoreUnavailable, Transaction
from nsml.common.clock import SystemClock, inline
from nsml.v1 import accounts_pb2, agents_pb2, nodes_pb2
from tests.support.failing import Failing
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_nodes import root_of, shown
from tests.unit.controlplane.services.test_sessions import refused


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warning, "LOOK_S", 0.05)


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def names(user: Stubs) -> dict[str, str]:
    """Conditions with their evidence."""
    answer = await user.nodes.GetCluster(nodes_pb2.GetClusterRequest())
    return {
        f"{nodes_pb2.ConditionName.Name(one.name).removeprefix('CONDITION_NAME_')} {one.subject}".strip(): one.evidence
        for one in answer.conditions
    }


async def shows(user: Stubs, *wanted: str) -> dict[str, str]:
    async def it_does() -> bool:
        return set(await names(user)) == set(wanted)

    await until(it_does, f"conditions {wanted}")
    return await names(user)


def samples(rig: Rig) -> dict[tuple[str, ...], float]:
    taken = take(known_of(rig.plane.core), CallCounts(()))
    return {
        (one.name, *one.labels.values()): one.value
        for family in figures(taken)
        for one in family.samples
    }


async def beat(agent: Agent, ahead_s: float) -> None:
    heartbeat = agents_pb2.Heartbeat()
    heartbeat.sent_at.FromNanoseconds(round((time.time() + ahead_s) * 1e9))
    await agent.say(agents_pb2.ControlRequest(heartbeat=heartbeat))


async def test_a_node_whose_clock_is_off_by_hours(rig: Rig) -> None:
    root = await root_of(rig)
    agent = await (await rig.agent("a")).connect()
    await beat(agent, 7200)
    found = await shows(root, "CLOCK_WRONG node a")
    assert found["CLOCK_WRONG node a"].endswith("ahead")
    node = await shown(root)
    assert 7000 < node.clock_ahead.ToSeconds() <= 7200
    figure = samples(rig)
    assert figure["nsml_condition", "CLOCK_WRONG", "node a"] == 1
    assert 7000 < figure["nsml_node_clock_ahead_seconds", "a"] <= 7200
    for _ in range(5):
        await beat(agent, 0)
    await shows(root)


async def test_a_control_plane_with_other_settings(rig: Rig) -> None:
    root = await root_of(rig)
    other = Member(name="cp2", version="test", settings={"time_limits": "high=24h"})
    await rig.on.store.commit(Transaction(success=(MEMBERS.put("cp2", other),)))
    found = await shows(root, "SETTINGS_DIFFER time_limits")
    assert "cp2: high=24h" in found["SETTINGS_DIFFER time_limits"]
    await rig.on.store.commit(Transaction(success=(MEMBERS.delete("cp2"),)))
    await shows(root)


async def test_a_machine_that_is_refused(rig: Rig) -> None:
    root = await root_of(rig)
    joins = rig.plane.core.shared(joining)
    with pytest.raises(Exception, match="not valid"):
        await joins.join(AnonymousCaller(), secret="x", node="gpu-7", signing_request=b"")
    found = await shows(root, "JOIN_REFUSED")
    assert "node gpu-7" in found["JOIN_REFUSED"]
    assert samples(rig)["nsml_joins_refused_total",] == 1


async def test_nobody_leads_in_the_metrics_while_the_store_is_gone() -> None:
    async with EmbeddedStore(":memory:", clock=SystemClock(), run=inline) as embedded:
        store = Failing(embedded)
        async with platform(store=store) as rig:
            assert samples(rig)["nsml_leads",] == 1
            store.error = lambda _: StoreUnavailable("etcd does not answer")
            with pytest.raises(StoreUnavailable):
                await rig.plane.core.health.touch()
            figure = samples(rig)
            assert figure["nsml_condition", "COORDINATION_GONE", ""] == 1
            assert figure["nsml_leads",] == 0
            assert figure["nsml_leader_term",] == 0
            store.error = None


async def remove(user: Stubs, name: str, *, revoke: bool = False) -> None:
    await user.nodes.RemoveNode(nodes_pb2.RemoveNodeRequest(name=name, revoke=revoke))


async def test_a_connected_node_is_cut_off_when_its_key_is_revoked(rig: Rig) -> None:
    root = await root_of(rig)
    agent = await (await rig.agent("a")).connect()
    assert (await refused(remove(root, "a")))[0] == "FAILED_PRECONDITION"
    await remove(root, "a", revoke=True)

    async def it_is_over() -> bool:
        return agent.error is not None

    await until(it_is_over, "the stream ends")

    async def it_is_refused() -> bool:
        again = await Agent(agent.stubs, "a").connect()
        assert again.error is not None
        # A stream that is refused while its first message is on the way is sometimes reset before it hears why.
        return again.error.code().name == "UNAUTHENTICATED"

    await until(it_is_refused, "it is told why")
    assert (await refused(shown(root, "a")))[0] == "NOT_FOUND"
    assert (await refused(remove(root, "a")))[0] == "NOT_FOUND"


async def test_a_node_with_sessions_keeps_its_key(rig: Rig) -> None:
    root = await rig.user("boss", role=Role.ADMIN)
    agent = await (await rig.agent("a")).connect()
    await root.submit()
    await agent.assignments(1)
    assert (await refused(remove(root, "a", revoke=True)))[0] == "FAILED_PRECONDITION"
    again = await Agent(agent.stubs, "a").connect()
    assert again.registered is not None


async def test_a_name_that_joined_and_never_registered_is_forgotten(rig: Rig) -> None:
    root = await root_of(rig)
    await rig.plane.core.accounts.create_node_token("ghost")
    await remove(root, "ghost", revoke=True)
    assert (await refused(remove(root, "ghost")))[0] == "NOT_FOUND"


async def test_the_log_says_who_drained_fenced_and_made_tokens(rig: Rig) -> None:
    root = await root_of(rig)
    await (await rig.agent("a")).connect()
    with structlog.testing.capture_logs() as lines:
        await root.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a", reason="disks"))
        await root.nodes.ResumeNode(nodes_pb2.ResumeNodeRequest(name="a"))
        await root.nodes.FenceNode(nodes_pb2.FenceNodeRequest(name="a", force=True))
        await root.accounts.CreateToken(accounts_pb2.CreateTokenRequest(user="root1"))
        await root.accounts.CreateJoinToken(accounts_pb2.CreateJoinTokenRequest())
        await root.accounts.RevokeToken(accounts_pb2.RevokeTokenRequest())
        await rig.plane.core.accounts.create_node_token("b")
    said = {line["event"]: line["by"] for line in lines if "by" in line}
    assert said == {
        "node.drained": "root1",
        "node.resumed": "root1",
        "node.fenced": "root1",
        "join_token.created": "root1",
        "token.revoked": "root1",
        "token.created": "the control plane",
    }
