"""What the replicas of a gang are told, and how ports are kept apart."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.machine.addresses import interface_of, is_port_free, reachable_host
from nodeagent.network.gang_network import (
    HOST,
    NONE,
    gang_variables,
    interface_variables,
    launcher_variables,
    meeting_port,
    own_port,
)
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import Draft, PortHook, PreparationFailed
from nsml.common.clock import inline
from nsml.v1 import resources_pb2
from nsml.v1 import sessions_pb2 as sessions
from tests.support.scripted_platform import assignment, session_id

S = session_id(1)


def replica(rank: int = 0, attempt: int = 1, session: str = S) -> ReplicaId:
    return ReplicaId(session_id=session, attempt=attempt, rank=rank)


def test_all_replicas_of_an_attempt_agree_and_share_no_port() -> None:
    told = [
        gang_variables(replica(rank), ["10.0.0.1", "10.0.0.2", "10.0.0.1"], 3, devices=1)
        for rank in (0, 1, 2)
    ]
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NSML_PARALLEL_WORLD"):
        assert len({one[name] for one in told}) == 1
    assert told[0]["MASTER_ADDR"] == "10.0.0.1"
    ports = told[0]["NSML_PARALLEL_PORTS"].split(",")
    assert len(set(ports)) == 3
    assert ports[0] == told[0]["MASTER_PORT"]
    assert [int(port) for port in ports] == [own_port(replica(rank)) for rank in range(3)]
    # two of them share a node: torch's cuda:LOCAL_RANK is the first device that each can see
    assert [(one["RANK"], one["LOCAL_RANK"], one["NODE_RANK"]) for one in told] == [
        ("0", "0", "0"),
        ("1", "0", "1"),
        ("2", "0", "2"),
    ]


def test_a_single_replica_meets_itself_on_the_loopback() -> None:
    assert gang_variables(replica(), ["10.0.0.1"], 1, devices=1)["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("devices", [0, 1, 2, 8])
def test_only_a_replica_that_is_one_process_of_several_has_a_rank(world: int, devices: int) -> None:
    mine = replica(world - 1)
    gang = gang_variables(mine, ["10.0.0.1"] * world, world, devices)
    rank = {name: gang[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in gang}
    is_process = world > 1 and devices <= 1
    assert rank == (
        {"RANK": str(mine.rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"} if is_process else {}
    )
    assert launcher_variables(gang, world, devices) == {
        "NNODES": str(world),
        "PET_NNODES": str(world),
        "PET_NPROC_PER_NODE": str(devices or 1),
        "PET_NODE_RANK": gang["NODE_RANK"],
        "PET_MASTER_ADDR": gang["MASTER_ADDR"],
        "PET_MASTER_PORT": gang["MASTER_PORT"],
    }


def test_the_next_attempt_has_other_ports_below_those_of_the_system() -> None:
    ports = {meeting_port(replica(attempt=attempt)) for attempt in range(1, 50)}
    assert len(ports) > 45
    assert all(20_000 <= port < 30_000 for port in ports)


@pytest.fixture(
    params=[("0.0.0.0", socket.AF_INET), ("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)]
)
def taken(request: pytest.FixtureRequest) -> Iterator[int]:
    host, family = request.param
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"nothing can listen at {host} here")
    with listener:
        yield listener.getsockname()[1]


def test_a_port_at_which_somebody_listens_is_taken_and_then_free(taken: int) -> None:
    assert not is_port_free(taken)


def listening_below_those_of_the_system() -> socket.socket:
    """At a port that the system gives to nobody: not to a connection that begins when this one is over."""
    for port in random.sample(range(20_000, 30_000), 1_000):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise AssertionError("a thousand ports are taken")


def test_a_port_that_was_used_a_moment_ago_is_free() -> None:
    with listening_below_those_of_the_system() as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            accepted, _ = listener.accept()
            accepted.close()  # the side that listens closes first: its port lingers
            caller.recv(1)
    assert is_port_free(port)


def prepared(
    folder: Path, mine: ReplicaId, *, earlier: list[ReplicaId], is_free: bool
) -> sessions.Cause | None:
    """The cause why it cannot begin."""
    order = assignment(mine.session_id, "train", rank=mine.rank)
    order.spec.replica_count = 2
    hook = PortHook(lambda _: earlier, lambda _: is_free, inline)
    assert hook.applies(order.spec)
    try:
        place = ReplicaFolder(folder)
        asyncio.run(hook.prepare(Draft(order, place, PreparationLog(place, lambda: None))))
    except PreparationFailed as failure:
        return failure.cause
    return None


def test_a_port_that_is_taken_ends_the_attempt_before_it_begins(tmp_path: Path) -> None:
    mine, other = replica(1), replica(1, session=session_id(2))
    same_port = next(
        found
        for number in range(3, 100_000)
        if own_port(found := replica(0, session=session_id(number))) == own_port(mine)
    )
    assert prepared(tmp_path, mine, earlier=[], is_free=True) is None
    assert prepared(tmp_path, mine, earlier=[other, replica(0)], is_free=True) is None
    assert prepared(tmp_path, mine, earlier=[], is_free=False) == sessions.CAUSE_PORT_TAKEN
    assert prepared(tmp_path, mine, earlier=[same_port], is_free=True) == sessions.CAUSE_PORT_TAKEN


def test_a_session_needs_a_port_in_the_nodes_network_alone() -> None:
    hook = PortHook(lambda _: [], is_port_free, inline)
    assert not hook.applies(sessions.SessionSpec())
    assert hook.applies(sessions.SessionSpec(network=resources_pb2.NETWORK_HOST))


def test_a_node_is_reached_where_it_reaches_the_control_plane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """127.0.0.2 stands for another machine: what leaves for it has an address of this one."""
    monkeypatch.setattr("nodeagent.machine.addresses.is_local", lambda _: False)
    assert reachable_host("127.0.0.2:1", "me") == "127.0.0.1"


def test_a_loopback_address_is_never_told_to_others() -> None:
    for server in (
        "localhost:1",
        "127.0.0.1:18553",
        "unix:/run/x",
        "[::1]:9",
        "no.such.host.invalid:1",
    ):
        assert not reachable_host(server, "me").startswith("127.")


def test_the_interface_is_the_one_that_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(family: int, address: str) -> SimpleNamespace:
        return SimpleNamespace(family=family, address=address)

    addresses = {
        "lo": [at(socket.AF_INET, "127.0.0.1")],
        "eth0": [at(socket.AF_INET, "10.0.0.5"), at(socket.AF_INET6, "fd00::5")],
        "ib0": [at(socket.AF_PACKET, "00:00:00:00:00:00"), at(socket.AF_INET, "10.1.0.5")],
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: addresses)
    assert [interface_of(host) for host in ("10.0.0.5", "fd00::5", "10.1.0.5")] == [
        "eth0",
        "eth0",
        "ib0",
    ]
    for host in ("127.0.0.1", "localhost", "::1", "10.0.0.6", "no.such.host.invalid"):
        assert interface_of(host) == ""


def test_gloo_is_told_the_interface_of_the_machine_and_not_of_an_engines_network() -> None:
    assert interface_variables(HOST, "eth1") == {"GLOO_SOCKET_IFNAME": "eth1"}
    for mode, interface in ((HOST, ""), (NONE, "eth1"), ("overlay:train", "eth1")):
        assert interface_variables(mode, interface) == {}
