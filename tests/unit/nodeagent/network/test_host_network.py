"""Which network a replica gets: decided by the agent's settings, whatever the control plane asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.config import Settings, SettingsError, read_settings
from nodeagent.folders import ReplicaId
from nodeagent.network.gang_network import GangNetwork
from nodeagent.network.host_network import (
    NetworkOffer,
    has_no_network,
    network_of,
    shares_ports,
)
from nodeagent.network.session_network import NetworkFacts
from nodeagent.replica.assignments import account_of
from nodeagent.replica.preparation_steps import environment_of
from nodeagent.runtimes.interface import Isolation, StartRefused
from nodeagent.wiring import _gangs, _offer
from nsml.v1 import resources_pb2
from nsml.v1 import sessions_pb2 as sessions
from tests.support.scripted_platform import assignment, session_id
from tests.unit.nodeagent.network.test_wiring_networks import PARTED, settings

ANY, OWN, HOST, NONE = (
    resources_pb2.NETWORK_UNSPECIFIED,
    resources_pb2.NETWORK_OWN,
    resources_pb2.NETWORK_HOST,
    resources_pb2.NETWORK_NONE,
)
MACHINES = GangNetwork(devices=("/dev/infiniband",))
OVERLAY = GangNetwork(mode="overlay:x")
OPEN, SHUT = NetworkOffer(has_own=True, host=MACHINES), NetworkOffer(has_own=True)
SHARED = NetworkOffer(host=GangNetwork())
APART = NetworkOffer(has_own=True, host=MACHINES, has_none=True)
STAGES = [
    sessions.SESSION_STAGE_PREDICT,
    sessions.SESSION_STAGE_PREDICT_TEST,
    sessions.SESSION_STAGE_EVALUATE,
]


def spec(network: int = ANY, replicas: int = 1) -> sessions.SessionSpec:
    return sessions.SessionSpec(network=network, replica_count=replicas)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "gangs", "offer", "given"),
    [
        (spec(), GangNetwork(), OPEN, None),
        (spec(OWN), GangNetwork(), OPEN, None),
        (spec(HOST), GangNetwork(mode="none"), OPEN, MACHINES),
        (spec(HOST), OVERLAY, SHARED, GangNetwork()),
        (spec(replicas=2), OVERLAY, SHUT, OVERLAY),
        (spec(HOST, 2), GangNetwork(), SHUT, GangNetwork()),
        (spec(OWN, 2), OVERLAY, SHARED, OVERLAY),
        (spec(NONE), GangNetwork(), APART, None),
    ],
)
def test_what_is_given(
    asked: sessions.SessionSpec,
    gangs: GangNetwork,
    offer: NetworkOffer,
    given: GangNetwork | None,
) -> None:
    assert network_of(asked, gangs, offer) == given


@pytest.mark.parametrize(
    ("asked", "gangs", "offer", "words"),
    [
        (spec(HOST), GangNetwork(), SHUT, "does not allow the host network: see host_network"),
        (spec(OWN), GangNetwork(), SHARED, "gives sessions no network of their own"),
        (spec(9), GangNetwork(), OPEN, "this agent knows no network 9"),
        (spec(NONE), GangNetwork(), OPEN, "cannot keep sessions from its network"),
        (spec(NONE, 2), GangNetwork(), APART, "another network here: gang_network is host"),
        (spec(HOST, 2), OVERLAY, OPEN, "another network here: gang_network is overlay:x"),
        (spec(OWN, 2), GangNetwork(), OPEN, "another network here: gang_network is host"),
        (spec(replicas=2), GangNetwork(mode="none"), OPEN, "gives gangs no network"),
    ],
)
def test_what_is_refused(
    asked: sessions.SessionSpec, gangs: GangNetwork, offer: NetworkOffer, words: str
) -> None:
    with pytest.raises(StartRefused, match=words):
        network_of(asked, gangs, offer)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ordered", [ANY, OWN, HOST])
def test_a_step_of_a_submission_has_no_network_whatever_is_ordered(
    stage: sessions.SessionStage, ordered: int
) -> None:
    order = spec(ordered)
    order.stage = stage
    assert network_of(order, GangNetwork(), APART) is None
    assert has_no_network(order)
    with pytest.raises(StartRefused, match="cannot keep sessions from its network"):
        network_of(order, GangNetwork(), OPEN)


def test_who_has_no_network() -> None:
    asked = [spec(NONE), spec(), spec(OWN), spec(HOST)]
    assert [has_no_network(one) for one in asked] == [True, False, False, False]
    infers = sessions.SessionSpec(stage=sessions.SESSION_STAGE_INFER)
    assert not has_no_network(infers)


def offered(
    chosen: Settings, level: Isolation, *, has_network: bool = True, joined: str = ""
) -> NetworkOffer:
    found: Any = NetworkFacts(network=object() if has_network else None)  # type: ignore[arg-type]
    isolation = replace(PARTED, level=level, joined_reason=joined)
    return _offer(chosen, isolation, found, _gangs(chosen, level, "eth1"), "eth1")


@pytest.mark.parametrize("chosen", [{}, {"host_network": "on-request"}])
def test_no_network_is_offered_where_sessions_are_kept_apart(chosen: dict[str, Any]) -> None:
    for level in (Isolation.NAMESPACE, Isolation.CONTAINER):
        assert NONE in offered(settings(**chosen), level).networks
        # also where all others share the machine's
        assert NONE in offered(settings(**chosen), level, has_network=False).networks
    for level in (Isolation.USER, Isolation.NONE):
        assert NONE not in offered(settings(**chosen), level).networks
    refused = offered(settings(**chosen), Isolation.NAMESPACE, joined="not permitted")
    assert NONE not in refused.networks


def test_nothing_but_the_setting_allows_the_host_network() -> None:
    for level in (Isolation.NAMESPACE, Isolation.CONTAINER):
        assert offered(settings(), level).networks == [OWN, NONE]
        assert offered(settings(gang_network="host"), level).networks == [OWN, NONE]
        allowed = offered(settings(host_network="on-request", gang_network="none"), level)
        assert allowed.networks == [OWN, HOST, NONE]
        assert allowed.host is not None
        assert (allowed.host.mode, allowed.host.devices) == ("host", ())


@pytest.mark.parametrize(
    ("chosen", "level", "has_network"),
    [
        ({}, Isolation.USER, True),
        ({}, Isolation.NONE, True),
        ({"session_network": "host"}, Isolation.NAMESPACE, False),
        ({"container_network": "host"}, Isolation.CONTAINER, False),
    ],
)
def test_where_all_sessions_have_the_machines_network_none_is_offered_of_their_own(
    chosen: dict[str, Any], level: Isolation, has_network: bool
) -> None:
    more = {"gang_devices": ("/dev/infiniband",), "gang_memlock": True}
    found = offered(settings(**chosen, **more), level, has_network=has_network)
    apart = level in {Isolation.NAMESPACE, Isolation.CONTAINER}
    shared = NetworkOffer(host=GangNetwork(), has_none=apart)
    assert found == shared, "no more than all sessions have"
    found = offered(
        settings(**chosen, **more, host_network="on-request"), level, has_network=has_network
    )
    assert found.networks == [HOST, *([NONE] if apart else [])]
    assert found.host is not None
    assert (found.host.devices, found.host.unlimited_memlock) == (("/dev/infiniband",), True)


@pytest.mark.parametrize(
    ("gangs", "environment"),
    [
        ("none", {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "ib0"}),
        ("host", {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "ib0"}),
        ("overlay:x", {"GLOO_SOCKET_IFNAME": "eth1"}),
    ],
)
def test_interfaces_are_those_of_the_machine(gangs: str, environment: dict[str, str]) -> None:
    chosen = settings(
        host_network="on-request", gang_network=gangs, gang_environment=("NCCL_SOCKET_IFNAME=ib0",)
    )
    found = offered(chosen, Isolation.CONTAINER)
    assert found.host is not None
    assert found.host.environment == environment


def test_the_program_is_told_where_it_is_reached() -> None:
    order = assignment(session_id(1), "train")
    order.hosts[:] = ["10.0.0.7"]
    replica = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
    host = GangNetwork(environment={"GLOO_SOCKET_IFNAME": "eth1"})
    assert environment_of(order, replica, [], None)["NSML_PARALLEL_WORLD"] == "10.0.0.7"
    assert "GLOO_SOCKET_IFNAME" not in environment_of(order, replica, [], None)
    told = environment_of(order, replica, [], host)
    assert (told["NSML_PARALLEL_WORLD"], told["GLOO_SOCKET_IFNAME"]) == ("10.0.0.7", "eth1")
    order.spec.environment["GLOO_SOCKET_IFNAME"] = "eth9"
    assert environment_of(order, replica, [], host)["GLOO_SOCKET_IFNAME"] == "eth9"


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        (sessions.SESSION_STAGE_PREDICT, "predict"),
        (sessions.SESSION_STAGE_PREDICT_TEST, "predict-test"),
        (sessions.SESSION_STAGE_EVALUATE, "evaluate"),
        (sessions.SESSION_STAGE_INFER, "infer"),
    ],
)
def test_the_program_is_told_its_stage(stage: sessions.SessionStage, word: str) -> None:
    order = assignment(session_id(1), "train")
    replica = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
    assert "NSML_STAGE" not in environment_of(order, replica, [], None)
    order.spec.stage = stage
    order.spec.environment["NSML_STAGE"] = "another"
    assert environment_of(order, replica, [], None)["NSML_STAGE"] == word


def test_a_confined_session_shares_its_uid_with_no_other_of_its_owner() -> None:
    order = assignment(session_id(1), "train")
    order.owner, order.owner_id = "kim", "u.1"
    names = {}
    for stage in sessions.SessionStage.values():
        order.spec.stage = stage
        names[stage] = account_of(order)
    ordinary = names.pop(sessions.SESSION_STAGE_UNSPECIFIED)
    assert ordinary == names.pop(sessions.SESSION_STAGE_INFER) == "u.1"
    assert len({ordinary, *names.values()}) == 1 + len(STAGES)


def test_ports_of_the_node_are_looked_at_for_those_that_are_told_one() -> None:
    assert [shares_ports(one) for one in (spec(), spec(OWN), spec(HOST), spec(replicas=2))] == [
        False, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["always", "asked", "gangs"])
def test_a_value_that_the_setting_cannot_have(value: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('node = "n"\nserver = "unix:/x"\ndata = "d"\n')
    with pytest.raises(SettingsError, match="host_network"):
        read_settings(file, {"NSML_AGENT_HOST_NETWORK": value})
    assert (
        read_settings(file, {"NSML_AGENT_HOST_NETWORK": "on-request"}).host_network == "on-request"
    )
