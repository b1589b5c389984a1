"""What a session sees and reaches of its machine, of other sessions and of the outside.

The machine is a network namespace of these tests, with an outside of its own; nothing of the real one's
network is touched or reached.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import fcntl
import json
import os
import platform
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controlplane.scheduler.fit import MOST_ON_ONE_NODE
from nodeagent.environments.build_queue import QueueLimits
from nodeagent.environments.sandbox import Sandbox, Task, base_python
from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.network import netlink, session_network
from nodeagent.network.gang_network import GangNetwork
from nodeagent.network.namespace_pool import READY
from nodeagent.network.netlink import Netlink, inside
from nodeagent.network.rules import NetworkRules
from nodeagent.network.session_network import NetworkFacts, SessionNetwork, probe_network
from nodeagent.runtimes import launch
from nodeagent.runtimes.interface import ExitRecord, Isolation, PythonEnvironment, ReplicaSpec
from nodeagent.runtimes.isolation import IsolationFacts, probe_isolation
from nodeagent.runtimes.limits import LimitFacts, probe_limits
from nodeagent.runtimes.process import ProcessDriver
from nodeagent.shim import namespaces, seccomp
from tests.e2e.programs import wait_for
from tests.integration.machine_network import (
    HEAD,
    METADATA,
    METADATA_HERE,
    METADATA_IPV6,
    NEIGHBOUR,
    OUTSIDE,
    SERVES,
    UPLINK,
    Answering,
    Names,
    neighbour_of_machine,
    outside_of_machine,
    reaches_served,
)
from tests.support.process_drivers import process_driver

UIDS = (first := random.randrange(1_500_000_000, 1_800_000_000), first + 99)
"""Ids of this run alone."""
ALLOWED_PORT = 18_777
RULES = NetworkRules(
    uids=UIDS,
    metadata=(METADATA, METADATA_HERE, METADATA_IPV6),
    ports=(ALLOWED_PORT,),
    connections=40,
)
WITHIN_S = 60.0
SIOCGIFHWADDR = 0x8927
PREFIX = Path(sys.base_prefix)


@dataclass
class Machine:
    """The machine of these tests; `ports` are of servers that answer with who they are.

    `neighbour` is a namespace behind a bridge of an engine; `engines` are the bridges that the agent looks after.
    """

    data: Path
    facts: NetworkFacts
    outside: int
    neighbour: int
    ports: dict[str, int]
    engines: list[str]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that every user can pass, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="nsml-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def machine(place: Path) -> Iterator[Machine]:
    if os.geteuid():
        pytest.skip("networks of their own for sessions are made by root")
    if shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("no program nft (package nftables)")
    if shutil.which("ip") is None:
        pytest.skip("no program ip (package iproute2)")
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.new_network()
    except OSError as error:
        os.close(before)
        pytest.skip(f"no network namespaces: {error}")
    monkeypatch = pytest.MonkeyPatch()
    servers: list[Any] = []
    outside = neighbour = -1
    engines: list[str] = []
    try:
        Path("/proc/sys/net/ipv4/ip_forward").write_text(
            "0"
        )  # no router but for what is said below
        outside = outside_of_machine()
        resolv = place / "resolv.conf"
        resolv.write_text(f"nameserver 127.0.0.53\nnameserver {OUTSIDE}\nsearch lab\n")
        monkeypatch.setattr(session_network, "RESOLVED_BY", (resolv,))
        monkeypatch.setattr(session_network, "_STATE", place / "networks")
        data = place / "agent"
        data.mkdir()
        facts = probe_network(
            data,
            rules=RULES,
            subnet="198.18.0.0/15",
            nameservers=(),
            is_wanted=True,
            engines=lambda: engines,
        )
        assert facts.network is not None, facts.reason
        ports = {}
        for name, host, port in (
            ("loopback", "127.0.0.1", 0),
            ("machine", "0.0.0.0", 0),
            ("allowed", "0.0.0.0", ALLOWED_PORT),
        ):
            servers.append(Answering(host, name, port))
            ports[name] = servers[-1].port
        for name, host in (("outside", str(OUTSIDE)), ("metadata", METADATA)):
            servers.append(inside(outside, partial(Answering, host, name)))
            ports[name] = servers[-1].port
        neighbour = neighbour_of_machine()
        servers.append(inside(neighbour, partial(Answering, NEIGHBOUR, "neighbour")))
        ports["neighbour"] = servers[-1].port
        servers.append(inside(outside, partial(Answering, METADATA, "names", 53)))
        for name, host in (("metadata here", METADATA_HERE), ("metadata IPv6", METADATA_IPV6)):
            at_once = ["nodad"] if ":" in host else []  # else it is not there yet
            subprocess.run(["ip", "address", "add", host, "dev", "lo", *at_once], check=True)
            servers.append(Answering(host, "metadata"))
            ports[name] = servers[-1].port
        servers.append(inside(outside, partial(Names, str(OUTSIDE))))
        engines.append("docker0")
        facts.firewall.restore()
        yield Machine(data, facts, outside, neighbour, ports, engines)
        assert forwards("uplink") == "1"
        facts.remove()
        assert forwards("uplink") == "0"
        assert [name for _, name in socket.if_nameindex() if name.startswith("nsml")] == []
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, check=True).stdout
        assert tables == b""
    finally:
        for server in servers:
            server.close()
        monkeypatch.undo()
        for namespace in {outside, neighbour} - {-1}:
            os.close(namespace)
        namespaces.enter_network(before)
        os.close(before)


def forwards(interface: str) -> str:
    return Path(f"/proc/sys/net/ipv4/conf/{interface}/forwarding").read_text().strip()


def answer_to(namespace: int, host: str, port: int) -> str:
    """What a program in a namespace hears there, or why it hears nothing."""

    def asked() -> str:
        try:
            with socket.create_connection((host, port), 2) as connection:
                return connection.recv(100).decode()
        except OSError as error:
            return error.strerror or type(error).__name__

    return inside(namespace, asked)


class Sessions:
    """Runs programs as sessions of different users."""

    def __init__(self, driver: ProcessDriver, folders: ReplicaFolders) -> None:
        self._driver = driver
        self._folders = folders
        self._count = 0
        self._running: list[ReplicaSpec] = []

    def spec(self, code: str, **more: Any) -> ReplicaSpec:
        self._count += 1
        name = "s" + base64.b32encode(os.urandom(10)).decode().lower()
        return ReplicaSpec(
            replica_id=ReplicaId(session_id=name, attempt=1, rank=0),
            argv=[str(PREFIX / "bin/python3"), "-I", "-c", HEAD + code],
            isolation=Isolation.NAMESPACE,
            uid=UIDS[0] + self._count,
            gid=UIDS[0] + self._count,
            python=PythonEnvironment(folder=PREFIX, base_prefix=PREFIX),
            **more,
        )

    async def answer(self, code: str, **more: Any) -> Any:
        """What a program prints as JSON."""
        spec = self.spec(code, **more)
        await self._driver.start(spec)
        record = await self._ended(spec)
        output = self._folders.of(spec.replica_id).output.read_text()
        assert (record.exit_code, record.message) == (0, ""), output
        return json.loads(output)

    async def running(self, code: str, **more: Any) -> tuple[ReplicaSpec, Any]:
        """A program that goes on after what it prints first, as a line of JSON."""
        spec = self.spec(code + "\ntime.sleep(1000)", **more)
        await self._driver.start(spec)
        self._running.append(spec)
        output = self._folders.of(spec.replica_id).output
        async with asyncio.timeout(WITHIN_S):
            while not (output.exists() and output.read_bytes().endswith(b"\n")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return spec, json.loads(output.read_text())

    def shim(self, spec: ReplicaSpec) -> int:
        return int(json.loads(self._folders.of(spec.replica_id).shim.read_bytes())["pid"])

    async def end(self) -> None:
        for spec in self._running:
            await self._driver.kill(spec.replica_id, reason="the test is over")
            await self._ended(spec)

    async def _ended(self, spec: ReplicaSpec) -> ExitRecord:
        async with asyncio.timeout(WITHIN_S):
            return await self._driver.wait(spec.replica_id)


@pytest.fixture(scope="module")
def isolation(machine: Machine) -> IsolationFacts:
    facts = probe_isolation(machine.data / "trial", trial_id=UIDS[1])
    if Isolation.NAMESPACE not in facts.with_accounts:
        pytest.skip(f"no namespaces: {facts.reason}")
    return facts


@asynccontextmanager
async def sessions_on(
    machine: Machine, isolation: IsolationFacts, limits: LimitFacts
) -> AsyncIterator[Sessions]:
    folders = ReplicaFolders(machine.data / "replicas")
    async with process_driver(folders, isolation, limits, network=machine.facts.network) as driver:
        made = Sessions(driver, folders)
        try:
            yield made
        finally:
            await made.end()


@pytest.fixture(scope="module")
def limits(machine: Machine) -> LimitFacts:
    return probe_limits(machine.data, disk_floor_bytes=0, with_groups=True)


@pytest.fixture
async def sessions(
    machine: Machine, isolation: IsolationFacts, limits: LimitFacts
) -> AsyncIterator[Sessions]:
    async with sessions_on(machine, isolation, limits) as made:
        yield made


async def test_nobody_else_reaches_what_a_session_listens_at(sessions: Sessions) -> None:
    _, (port, address, by_loopback, by_name) = await sessions.running(SERVES)
    assert [by_loopback, by_name] == ["mine", "mine"]
    tries = reaches_served(port, address)
    for gang in (None, GangNetwork()):
        answers = await sessions.answer(tries, gang=gang)
        assert "mine" not in answers, gang
    with pytest.raises(OSError, match=r"refused|unreachable|No route"):
        socket.create_connection((address, port), 2).close()


async def test_the_machine_is_closed_but_for_ports_that_its_administrator_opened(
    sessions: Sessions, machine: Machine
) -> None:
    network = machine.facts.network
    assert network is not None
    ports, hosts = machine.ports, [str(UPLINK.ip), str(network.subnet[1])]
    targets = [("127.0.0.1", ports["loopback"])]
    targets += [(host, ports[name]) for host in hosts for name in ("machine", "allowed")]
    answers = await sessions.answer(f"print(json.dumps([reaches(one) for one in {targets}]))")
    assert [answer in ("machine", "loopback", "allowed") for answer in answers] == [
        False, False, True, False, True,
    ]  # fmt: skip


async def test_a_session_with_many_connections_leaves_others_theirs(
    sessions: Sessions, machine: Machine
) -> None:
    target = (str(OUTSIDE), machine.ports["outside"])
    flood = (
        "ends, refused = [], 0\n"
        "for _ in range(45):\n"
        f"    try: ends.append(socket.create_connection({target}, 10))\n"
        "    except OSError: refused += 1\n"
        "print(json.dumps([len(ends), refused]), flush=True)\n"
    )
    _, counts = await sessions.running(flood)
    assert counts == [40, 5]
    assert await sessions.answer(f"print(json.dumps(reaches({target})))") == "outside"


@pytest.fixture
def published(machine: Machine) -> Iterator[int]:
    """A port of the machine that leads to the neighbour, as engines publish ports of containers."""
    table = (
        "table ip published {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n"
        f"fib daddr type local tcp dport 18778 dnat to {NEIGHBOUR}:{machine.ports['neighbour']}\n}}\n}}\n"
    )
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    yield 18_778
    subprocess.run(["nft", "delete", "table", "ip", "published"], check=True)


async def test_containers_of_the_machine_are_closed(
    sessions: Sessions, machine: Machine, published: int
) -> None:
    neighbour = (NEIGHBOUR, machine.ports["neighbour"])
    with socket.create_connection(neighbour, 2) as connection:
        assert connection.recv(100) == b"neighbour"  # the machine itself does
    reached = partial(socket.create_connection, (str(UPLINK.ip), published), 2)
    with inside(machine.outside, reached) as connection:
        assert connection.recv(100) == b"neighbour"
    targets = [neighbour, (str(UPLINK.ip), published)]
    answers = await sessions.answer(f"print(json.dumps([reaches(one) for one in {targets}]))")
    assert "neighbour" not in answers


async def test_the_outside_is_reached_by_address_and_by_name(
    sessions: Sessions, machine: Machine
) -> None:
    port = machine.ports["outside"]
    answers = await sessions.answer(
        f'print(json.dumps([reaches(("{OUTSIDE}", {port})), reaches(("data.lab", {port})),'
        ' socket.gethostbyname(socket.gethostname()), open("/etc/resolv.conf").read()]))'
    )
    assert answers == ["outside", "outside", "127.0.1.1", f"nameserver {OUTSIDE}\nsearch lab\n"]


@pytest.mark.parametrize("gang", [None, GangNetwork()], ids=["own network", "machine's network"])
async def test_no_session_reaches_a_metadata_service(
    sessions: Sessions, machine: Machine, gang: GangNetwork | None
) -> None:
    target = (METADATA, machine.ports["metadata"])
    with socket.create_connection(target, 2) as connection:
        assert connection.recv(100) == b"metadata"  # the machine itself does
    assert await sessions.answer(f"print(json.dumps(reaches({target})))", gang=gang) != "metadata"


def change_rules(table: str, how: str) -> None:
    what, kind, *chain = how.split()
    subprocess.run(["nft", what, kind, "inet", table, *chain], check=True)


@pytest.mark.parametrize("how", ["delete table", "flush table", "flush chain output"])
async def test_rules_that_something_removed_come_back(
    sessions: Sessions, machine: Machine, how: str
) -> None:
    firewall = machine.facts.firewall
    assert firewall is not None
    target = (METADATA, machine.ports["metadata"])
    reaches = f"print(json.dumps(reaches({target})))"
    change_rules(firewall.table, how)
    assert await sessions.answer(reaches, gang=GangNetwork()) == "metadata"
    firewall.restore()
    assert await sessions.answer(reaches, gang=GangNetwork()) != "metadata"
    outside = (str(OUTSIDE), machine.ports["outside"])
    assert await sessions.answer(f"print(json.dumps(reaches({outside})))") == "outside"


def test_rules_that_nobody_touched_are_left_alone(machine: Machine) -> None:
    firewall = machine.facts.firewall
    assert firewall is not None

    def handle() -> str:
        listed = ["nft", "-a", "list", "table", "inet", firewall.table]
        said = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        return said.partition("\n")[0]

    before = handle()
    firewall.restore()
    assert handle() == before


@pytest.fixture
def led_astray(machine: Machine) -> Iterator[tuple[str, int]]:
    """A port of a metadata service's address that the machine answers itself, by a rule of its own."""
    table = (
        "table ip astray {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n"
        f"ip daddr {METADATA} tcp dport 18779 dnat to {UPLINK.ip}:{machine.ports['machine']}\n}}\n}}\n"
    )
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    yield METADATA, 18_779
    subprocess.run(["nft", "delete", "table", "ip", "astray"], check=True)


def test_no_container_reaches_a_metadata_service(
    machine: Machine, led_astray: tuple[str, int]
) -> None:
    firewall = machine.facts.firewall
    assert firewall is not None
    targets = [
        (METADATA, machine.ports["metadata"]),
        (METADATA_HERE, machine.ports["metadata here"]),
        (METADATA_IPV6, machine.ports["metadata IPv6"]),
        led_astray,
    ]

    def answers() -> list[str]:
        return [answer_to(machine.neighbour, *target) for target in targets]

    assert not {"metadata", "machine"} & set(answers())
    assert answer_to(machine.neighbour, METADATA, 53) == "names"
    for name, host in (("outside", str(OUTSIDE)), ("machine", str(UPLINK.ip))):
        assert answer_to(machine.neighbour, host, machine.ports[name]) == name
    # as when the engine's network is made anew
    machine.engines.clear()
    firewall.restore()
    assert answers() == ["metadata", "metadata", "metadata", "machine"]
    machine.engines.append("docker0")
    firewall.restore()
    assert not {"metadata", "machine"} & set(answers())


def flooded(namespace: int, target: tuple[str, int], count: int) -> list[socket.socket]:
    """As many connections from a namespace as can be had, `count` at most."""

    def flood() -> list[socket.socket]:
        ends = []
        with suppress(OSError):
            for _ in range(count):
                ends.append(socket.create_connection(target, 10))  # noqa: PERF401 - kept when one fails
        return ends

    return inside(namespace, flood)


@pytest.fixture
def bounded(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many connections all sessions have on a machine that could have twice as many."""
    firewall = machine.facts.firewall
    assert firewall is not None
    with monkeypatch.context() as changed:
        most = tmp_path / "most"
        most.write_text("140\n")
        changed.setattr(session_network, "_CONNECTIONS", most)
        firewall.restore()
        yield 70
    firewall.restore()


def test_all_sessions_together_leave_the_machine_half_of_its_connections(
    machine: Machine, bounded: int
) -> None:
    network = machine.facts.network
    assert network is not None
    target = (str(OUTSIDE), machine.ports["outside"])
    namespaces = [network.namespace() for _ in range(2)]
    ends: list[socket.socket] = []
    try:
        counts = []
        for namespace in (machine.neighbour, *namespaces):
            had = flooded(namespace, target, 60)
            ends += had
            counts.append(len(had))
        assert counts == [40, 30, 0]
        assert sum(counts) == bounded
        socket.create_connection(target, 2).close()  # the machine itself
    finally:
        for end in ends:
            end.close()
        for namespace in namespaces:
            os.close(namespace)


def test_the_machine_is_no_router_for_others(machine: Machine) -> None:
    firewall = machine.facts.firewall
    assert firewall is not None
    through = partial(answer_to, machine.outside, NEIGHBOUR, machine.ports["neighbour"])
    assert forwards("uplink") == "1"
    assert through() != "neighbour"
    everything = Path("/proc/sys/net/ipv4/ip_forward")
    try:
        everything.write_text("1")  # somebody wants it to be one
        firewall.restore()
        assert through() == "neighbour"
    finally:
        everything.write_text("0")
        Path("/proc/sys/net/ipv4/conf/docker0/forwarding").write_text("1")
        again = probe_network(
            machine.data, rules=RULES, subnet="198.18.0.0/15", nameservers=(), is_wanted=True
        )
        firewall.restore()
    assert again.network is not None, again.reason
    assert through() != "neighbour"


@pytest.fixture
def another(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], NetworkFacts]:
    """Another agent of the machine finds out what works."""
    monkeypatch.setattr(session_network, "_TRIAL_WITHIN_S", 2.0)

    def found() -> NetworkFacts:
        return probe_network(
            tmp_path, rules=NetworkRules(), subnet="198.18.0.0/15", nameservers=(), is_wanted=True
        )

    return found


def test_a_firewall_that_forwards_nothing_is_a_reason(another: Callable[[], NetworkFacts]) -> None:
    table = (
        "table inet elsewhere {\nchain forward {\n"
        "type filter hook forward priority 0; policy drop;\n}\n}\n"
    )
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    try:
        facts = another()
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "elsewhere"], check=True)
    assert facts.network is None
    assert "let its firewall forward" in facts.reason
    assert len([name for _, name in socket.if_nameindex() if name.startswith("nsml")]) == 1
    facts.remove()


def test_dockers_own_rules_let_sessions_through(another: Callable[[], NetworkFacts]) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("no program iptables")
    for command in ("-P FORWARD DROP", "-N DOCKER-USER", "-A FORWARD -j DOCKER-USER"):
        subprocess.run(["iptables", *command.split()], check=True)
    try:
        facts = another()
        assert facts.network is not None, facts.reason
        facts.remove()
        kept = subprocess.run(["iptables", "-S", "DOCKER-USER"], capture_output=True, check=True)
        assert b"nsml" not in kept.stdout
    finally:
        for command in ("-F FORWARD", "-F DOCKER-USER", "-X DOCKER-USER", "-P FORWARD ACCEPT"):
            subprocess.run(["iptables", *command.split()], check=True)
        subprocess.run(["nft", "delete", "table", "ip", "filter"], check=True)


def test_what_an_agent_left_goes_with_its_data_folder(
    another: Callable[[], NetworkFacts], machine: Machine, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    rules = NetworkRules()
    left = probe_network(gone, rules=rules, subnet="198.18.0.0/15", nameservers=(), is_wanted=True)
    own = machine.facts.network
    assert left.network is not None
    assert own is not None
    assert not left.network.subnet.overlaps(own.subnet)
    gone.rmdir()
    another().remove()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, check=True).stdout
    assert tables.split() == [b"table", b"inet", own.bridge.encode()]
    assert [name for _, name in socket.if_nameindex() if name.startswith("nsml")] == [own.bridge]


def test_the_next_agent_finds_the_network_and_keeps_its_rules(machine: Machine) -> None:
    own = machine.facts.network
    assert own is not None
    namespace = own.namespace()
    try:
        for is_wanted in (False, True):
            facts = probe_network(
                machine.data,
                rules=RULES,
                subnet="10.0.0.0/8",
                nameservers=(),
                is_wanted=is_wanted,
            )
            assert (facts.network is not None) is is_wanted, facts.reason
            assert facts.network is None or facts.network.subnet == own.subnet
            target = (str(UPLINK.ip), machine.ports["machine"])
            with pytest.raises(OSError, match="No route"):
                inside(namespace, partial(socket.create_connection, target, 2))
            outside = (str(OUTSIDE), machine.ports["outside"])
            inside(namespace, partial(socket.create_connection, outside, 2)).close()
    finally:
        os.close(namespace)


def test_the_machines_end_keeps_its_hardware_address(machine: Machine) -> None:
    network = machine.facts.network
    assert network is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:

        def address() -> bytes:
            asked = struct.pack("256s", network.bridge.encode())
            return fcntl.ioctl(one, SIOCGIFHWADDR, asked)[18:24]

        before, namespaces = address(), []
        for _ in range(20):
            namespaces.append(network.namespace())
            assert address() == before
    for namespace in namespaces:
        os.close(namespace)


def ports_of(network: SessionNetwork) -> set[str]:
    """Its interfaces of sessions: engines and other tests make some of their own."""
    begin = f"{network.bridge[4:]}."
    return {name for _, name in socket.if_nameindex() if name.startswith(begin)}


def test_a_session_brings_the_machine_no_address(machine: Machine) -> None:
    network = machine.facts.network
    assert network is not None
    groups = 1 << 4 | 1 << 8  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as heard:
        heard.bind((0, groups))
        heard.settimeout(
            3.0
        )  # of IPv6 one comes when nobody else was found to have it, a second or two later
        here = ports_of(network)
        namespaces = [network.namespace() for _ in range(4)]
        ports = ports_of(network) - here
        own = {socket.if_nametoindex(name) for name in (network.bridge, *ports)}
        try:
            while True:
                message = heard.recv(1 << 16)
                (index,) = struct.unpack_from("=I", message, 20)
                assert index not in own
        except TimeoutError:
            pass
    for namespace in namespaces:
        os.close(namespace)


def test_a_sessions_interfaces_have_one_queue_whatever_the_machine_has_of_processors(
    machine: Machine,
) -> None:
    """The kernel's default makes a start the slower the larger the machine is."""
    network = machine.facts.network
    assert network is not None

    def queues(name: str) -> list[int]:
        with Netlink() as own:
            values = netlink._values(own._ask(netlink._GETLINK, netlink._named(name))[16:])
        kinds = (netlink._IFLA_NUM_TX_QUEUES, netlink._IFLA_NUM_RX_QUEUES)
        return [int.from_bytes(values[kind], sys.byteorder) for kind in kinds]

    here = ports_of(network)
    with session_network._closed(network._make()) as namespace:
        ports = ports_of(network) - here
        assert ports
        # Others are of namespaces that the pool makes ready meanwhile.
        assert {port: queues(port) for port in ports} == {port: [1, 1] for port in ports}
        assert inside(namespace, lambda: queues("eth0")) == [1, 1]


def test_a_session_has_ipv6_on_its_loopback_alone(machine: Machine) -> None:
    """Its interface comes without: the kernel burns processor time where that is set of one that is there."""
    network = machine.facts.network
    assert network is not None

    def is_disabled(name: str) -> bool:
        return Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").read_text().strip() == "1"

    if not Path("/proc/sys/net/ipv6").exists():
        pytest.skip("a kernel without IPv6")
    with session_network._closed(network._make()) as namespace:
        found = inside(
            namespace, lambda: {name: is_disabled(name) for name in ("default", "eth0", "lo")}
        )
    assert found == {"default": True, "eth0": True, "lo": False}


async def test_a_gang_has_the_machines_network(sessions: Sessions, machine: Machine) -> None:
    target = ("127.0.0.1", machine.ports["loopback"])
    answer = await sessions.answer(f"print(json.dumps(reaches({target})))", gang=GangNetwork())
    assert answer == "loopback"


async def test_a_sessions_network_is_found_by_the_pid_of_its_shim(sessions: Sessions) -> None:
    spec, name = await sessions.running(
        'print(json.dumps(os.readlink("/proc/self/ns/net")), flush=True)'
    )
    assert network_of(sessions.shim(spec)) == name
    assert network_of(os.getpid()) != name


def network_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


SEEN = """\
def text(*names):
    for name in names:
        try: return open("/sys/fs/cgroup/" + name).read().strip()
        except OSError: pass
    return ""
groups = [path for path, _, _ in os.walk("/sys/fs/cgroup")]
member = open("/proc/self/cgroup").read()
print(json.dumps({
    "groups": groups, "member": member, "mounts": open("/proc/self/mountinfo").read(), "interfaces": os.listdir("/sys/class/net"),
    "limit": text("memory/memory.limit_in_bytes", "memory.max"),
    "procs": text("pids/cgroup.procs", "cgroup.procs"),
    "own": os.environ["NSML_REPLICA"],
}))
"""

HIDDEN = """found = {}
for path in %s:
    if os.path.isdir(path):
        for work in (lambda: os.chmod(path, 0o777), lambda: open(path + "/x", "w").close()):
            try: work()
            except OSError: pass
        found[path] = os.listdir(path)
print(json.dumps(found))
"""


async def test_what_is_hidden_of_the_kernel_is_empty_and_stays_so(sessions: Sessions) -> None:
    hidden = [*launch._HIDDEN, *launch._INTERFACES]
    found = await sessions.answer(HIDDEN % hidden)
    assert len(found) > 1
    assert not any(found.values())


async def test_a_session_sees_its_own_control_group_alone(
    sessions: Sessions, limits: LimitFacts
) -> None:
    other, _ = await sessions.running("print(1, flush=True)")
    seen = await sessions.answer(SEEN, memory_bytes=256 << 20)
    assert other.replica_id.session_id not in str(seen)
    assert seen["own"] not in seen["member"]
    assert not [path for path in seen["groups"] if "nsml" in path or seen["own"] in path]
    assert seen["interfaces"] == []
    if limits.groups is not None and "memory" in limits.groups["folders"]:
        assert seen["limit"] == str(256 << 20)


def unified() -> Path | None:
    """Where control groups of version 2 are mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(at) for _, at, kind, *_ in mounts if kind == "cgroup2"), None)


async def test_its_own_group_of_version_2(machine: Machine, isolation: IsolationFacts) -> None:
    top = unified()
    if top is None:
        pytest.skip("no control groups of version 2 are mounted here")
    place = top / f"nsml-test-{os.getpid()}"
    place.mkdir()
    # without a controller: where those are is the machine's choice
    base: Any = {"version": 2, "folders": {"cpuacct": str(place)}}
    try:
        async with sessions_on(machine, isolation, LimitFacts(groups=base)) as sessions:
            other, _ = await sessions.running("print(1, flush=True)")
            seen = await sessions.answer(SEEN)
    finally:
        place.rmdir()
    assert other.replica_id.session_id not in str(seen)
    assert seen["own"] not in seen["member"]
    assert seen["groups"] == ["/sys/fs/cgroup"]
    assert "1" in seen["procs"].split()


async def test_a_program_is_refused_what_it_needs_no_kernel_for(sessions: Sessions) -> None:
    which = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    calls = {
        name: pair[which] for name, pair in {**seccomp.REFUSED, **seccomp.MISSING}.items()
        if pair[which] is not None
    }  # fmt: skip
    answers = await sessions.answer(
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def asked(number):\n"
        "    ctypes.set_errno(0)\n"
        "    return [libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno()]\n"
        f"answers = {{name: asked(number) for name, number in {calls}.items()}}\n"
        "answers['newer'] = asked(4000)\n"
        f"for family in {seccomp.ADDRESS_FAMILIES}:\n"
        "    try: socket.socket(family).close()\n"
        "    except OSError as error: answers[str(family)] = error.errno\n"
        "print(json.dumps(answers))"
    )
    missing = {name: [-1, errno.ENOSYS] for name in (*seccomp.MISSING, "newer")}
    families = dict.fromkeys(map(str, seccomp.ADDRESS_FAMILIES), errno.EAFNOSUPPORT)
    assert answers == {
        **{name: [-1, errno.EPERM] for name in seccomp.REFUSED.keys() & calls},
        **missing,
        **families,
    }


async def test_what_programs_need_works_within_the_filter(sessions: Sessions) -> None:
    debugger = shutil.which("gdb", path="/usr/bin")
    attached = (
        'child = subprocess.Popen(["sleep", "100"])\n'
        f'done = subprocess.run(["{debugger}", "-batch", "-nx", "-p", str(child.pid), "-ex", "info proc"],'
        " capture_output=True, text=True)\n"
        "child.kill(); found = f'process {child.pid}' in done.stdout\n"
    )
    answers = await sessions.answer(
        "import subprocess, multiprocessing, concurrent.futures, operator\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: forked = pool.map(abs, [-1, -2])\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool: threads = list(pool.map(abs, [-3]))\n"
        "shell = subprocess.run('echo $(echo a | cat)', shell=True, capture_output=True, text=True).stdout\n"
        + (attached if debugger else "found = True\n")
        + "print(json.dumps([forked, threads, shell, found]))"
    )
    assert answers == [[1, 2], [3], "a\n", True]


def test_a_build_of_an_environment_reaches_no_more_than_a_session(
    machine: Machine, isolation: IsolationFacts, tmp_path: Path
) -> None:
    network = machine.facts.network
    assert network is not None
    sandbox = Sandbox(
        tmp_path / "builds",
        machine=isolation.machine,
        level=Isolation.NAMESPACE,
        ids=[UIDS[0]],
        network=network,
    )
    ports, own = machine.ports, str(network.subnet[1])
    targets = [("127.0.0.1", ports["loopback"]), (own, ports["machine"]), (own, ports["allowed"])]
    tries = (
        "import socket\n"
        f"for target in {targets}:\n"
        "    try:\n"
        "        print('open' if socket.create_connection(target, 1.0).recv(9) else 'closed')\n"
        "    except OSError:\n"
        "        print('closed')\n"
    )
    said = sandbox.ask(Task(argv=[str(base_python()), "-c", tries]), most=1000, owner="kim")
    assert said.split() == [b"closed", b"closed", b"open"]


def test_namespaces_are_kept_ready_and_given_back(machine: Machine) -> None:
    network = machine.facts.network
    assert network is not None

    def ready() -> int:
        return len(network._pool._ready)

    try:
        taken = [network.namespace() for _ in range(READY + 2)]
        assert len({os.fstat(one).st_ino for one in taken}) == len(taken)
        wait_for(lambda: ready() >= READY // 2, what="some are ready")
        for one in taken:
            os.close(one)
    finally:
        network.close()
    assert ready() == 0
    os.close(network.namespace())
    assert ready() == 0


def test_the_bridge_has_a_port_for_each_session_that_a_node_takes() -> None:
    """Beside what is kept ready, and what builds have: a session that finds no port cannot start."""

    if os.geteuid():
        pytest.skip("networks of their own for sessions are made by root")

    def fill(descriptor: int) -> None:
        with Netlink() as host:
            host.add_bridge("bridge")
            bridge = socket.if_nametoindex("bridge")
            for number in range(MOST_ON_ONE_NODE + 2 * READY + 2 * QueueLimits().at_once):
                host.add_pair(f"a.{number}", f"b.{number}", descriptor, mtu=1500, bridge=bridge)

    os.close(netlink.new_namespace(fill))
