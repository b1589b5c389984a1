"""What a session sees and reaches where the agent is not root: as `test_session_network.py`, by pasta.

The machine is a network namespace of these tests; nothing of the real one's network is touched or reached.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from nodeagent.network.netlink import inside
from nodeagent.shim import namespaces
from tests.e2e.programs import wait_for
from tests.integration.machine_network import (
    HEAD,
    METADATA,
    METADATA_HERE,
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

CHECKOUT = Path(__file__).resolve().parents[2]
UID = random.randrange(1_500_000_000, 1_800_000_000)
RESOLVER_HERE = "203.0.113.1"
GOES_ON = "\ntime.sleep(1000)"
BOUND = """\
def bound(address, option):
    "As `reaches`, by an interface that the program names."
    with socket.socket() as end:
        end.settimeout(2)
        try:
            if option == "device": end.setsockopt(socket.SOL_SOCKET, 25, b"eth0")
            else: end.setsockopt(socket.IPPROTO_IP, 50, socket.htonl(socket.if_nametoindex("eth0")).to_bytes(4, "little"))
            end.connect(address)
            return end.recv(100).decode()
        except OSError as error:
            return error.__class__.__name__
"""


def tries_of(targets: list[tuple[str, int]]) -> str:
    """A program that prints all that it gets from these in any way: at once, as each may wait for no answer."""
    return (
        f"{BOUND}\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "def tried(given): return given[0](*given[1:])\n"
        f"tries = [some for one in {targets} for some in"
        " ((reaches, one), (bound, one, 'device'), (bound, one, 'index'))]\n"
        "with ThreadPoolExecutor(len(tries)) as pool: print(json.dumps([*pool.map(tried, tries)]))"
    )


@dataclass
class Machine:
    """`ports` are of servers that answer with who they are; `folder` is passed by everybody."""

    folder: Path
    outside: int
    ports: dict[str, int]


class RootlessAgent:
    """An agent of a user, in a process of its own."""

    def __init__(self, folder: Path, **probed: Any) -> None:
        words = {
            "subnet": "198.18.0.0/15",
            "nameservers": [],
            "metadata": [METADATA, METADATA_HERE],
        }
        command = [sys.executable, "-m", "tests.integration.rootless_agent", str(UID), str(folder)]
        self.process = subprocess.Popen(
            [*command, json.dumps({**words, **probed})],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._answer()

    def run(self, code: str, **more: Any) -> Any:
        """What a program prints as JSON, all in one line."""
        started = self.start(code, **more)
        record = self.end(started["name"], kill=False)
        assert (record["exit_code"], record["message"]) == (0, ""), started["output"]
        return json.loads(started["output"])

    def start(self, code: str, **more: Any) -> Any:
        return self._ask("start", code=HEAD + code, **more)

    def serve(self, name: str, word: str) -> None:
        self._ask("serve", name=name, word=word)

    def end(self, name: str, **more: Any) -> Any:
        return self._ask("end", name=name, **more)

    def close(self) -> None:
        with suppress(OSError):
            self._stream(self.process.stdin).close()
        self.process.wait(60)
        self._stream(self.process.stdout).close()

    def _ask(self, do: str, **words: Any) -> Any:
        stdin = self._stream(self.process.stdin)
        stdin.write(json.dumps({"do": do, **words}) + "\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._stream(self.process.stdout).readline()
        assert line, f"the agent ended with {self.process.wait(10)}"
        return json.loads(line)

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if os.geteuid():
        pytest.skip("the machine of these tests is made by root")
    if shutil.which("ip") is None:
        pytest.skip("no program ip (package iproute2)")
    if shutil.which("pasta") is None:
        if os.environ.get("NSML_REQUIRE_PASTA"):
            pytest.fail("no program pasta (package passt), and NSML_REQUIRE_PASTA is set")
        pytest.skip("no program pasta (package passt)")
    if not Path("/dev/net/tun").exists():
        pytest.skip("no /dev/net/tun")
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.new_network()
    except OSError as error:
        os.close(before)
        pytest.skip(f"no network namespaces: {error}")
    servers: list[Any] = []
    outside = neighbour = -1
    try:
        with tempfile.TemporaryDirectory(prefix="nsml-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            folder.chmod(0o711)
            (folder / "resolv.conf").write_text(
                f"nameserver 127.0.0.53\nnameserver {OUTSIDE}\nsearch lab\n"
            )
            outside = outside_of_machine()
            ports = {}
            for word, host in (("loopback", "127.0.0.1"), ("machine", "0.0.0.0")):
                servers.append(Answering(host, word))
                ports[word] = servers[-1].port
            for word, host in (("outside", str(OUTSIDE)), ("metadata", METADATA)):
                servers.append(inside(outside, partial(Answering, host, word)))
                ports[word] = servers[-1].port
            neighbour = neighbour_of_machine()
            servers.append(inside(neighbour, partial(Answering, NEIGHBOUR, "neighbour")))
            ports["neighbour"] = servers[-1].port
            subprocess.run(["ip", "address", "add", METADATA_HERE, "dev", "lo"], check=True)
            servers.append(Answering(METADATA_HERE, "metadata"))
            ports["metadata here"] = servers[-1].port
            servers.append(inside(outside, partial(Names, str(OUTSIDE))))
            yield Machine(folder, outside, ports)
    finally:
        for server in servers:
            server.close()
        for namespace in {outside, neighbour} - {-1}:
            os.close(namespace)
        namespaces.enter_network(before)
        os.close(before)


@pytest.fixture(scope="module")
def agent(machine: Machine) -> Iterator[RootlessAgent]:
    made = RootlessAgent(machine.folder)
    try:
        if made.first["isolation"] != "namespace":
            pytest.skip("no namespaces without root here")
        assert made.first["reason"] == ""
        yield made
    finally:
        made.close()


def test_nobody_else_reaches_what_a_session_listens_at(agent: RootlessAgent) -> None:
    started = agent.start(SERVES + GOES_ON)
    port, address, by_loopback, by_name = json.loads(started["output"])
    assert [by_loopback, by_name] == ["mine", "mine"]
    tries = reaches_served(port, address)
    for gang in (False, True):
        assert "mine" not in agent.run(tries, gang=gang), gang
    for host in ("127.0.0.1", str(UPLINK.ip), address):
        with pytest.raises(OSError, match=r"refused|unreachable|No route|timed out"):
            socket.create_connection((host, port), 1).close()
    agent.end(started["name"])


def test_this_machine_and_its_containers_are_closed(agent: RootlessAgent, machine: Machine) -> None:
    ports, gateway = machine.ports, "198.18.0.1"
    targets = [("127.0.0.1", ports["loopback"]), (gateway, ports["loopback"])]
    targets += [(gateway, ports["machine"]), (str(UPLINK.ip), ports["machine"])]
    targets += [("172.30.0.1", ports["machine"]), (NEIGHBOUR, ports["neighbour"])]
    words = agent.run(tries_of(targets))
    assert len(words) == 3 * len(targets)
    assert not {"loopback", "machine", "neighbour"} & set(words)


def test_the_outside_is_reached_by_address_and_by_name(
    agent: RootlessAgent, machine: Machine
) -> None:
    port = machine.ports["outside"]
    answers = agent.run(
        f'print(json.dumps([reaches(("{OUTSIDE}", {port})), reaches(("data.lab", {port})),'
        ' socket.gethostbyname(socket.gethostname()), open("/etc/resolv.conf").read()]))'
    )
    assert answers == ["outside", "outside", "127.0.1.1", f"nameserver {OUTSIDE}\nsearch lab\n"]


def test_a_session_reaches_no_metadata_service(agent: RootlessAgent, machine: Machine) -> None:
    targets = [
        (METADATA, machine.ports["metadata"]),
        (METADATA_HERE, machine.ports["metadata here"]),
    ]
    for target in targets:
        with socket.create_connection(target, 2) as connection:
            assert connection.recv(100) == b"metadata"  # the machine itself does
    words = agent.run(tries_of(targets))
    assert len(words) == 3 * len(targets)
    assert "metadata" not in set(words)


def test_a_session_cannot_change_its_network(agent: RootlessAgent) -> None:
    answers = agent.run(
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "import fcntl, struct\n"
        "def refused(work):\n"
        "    try: work()\n"
        "    except OSError: return True\n"
        "    return False\n"
        "def route():\n"
        "    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as end:\n"
        "        body = struct.pack('=8BI', 2, 32, 0, 0, 255, 4, 254, 2, 0)\n"
        "        body += struct.pack('=HH4s', 8, 1, socket.inet_aton('169.254.0.0'))\n"
        "        end.send(struct.pack('=IHHII', 16 + len(body), 25, 5, 1, 0) + body)\n"
        "        (code,) = struct.unpack_from('=i', end.recv(4096), 16)\n"
        "        if code: raise OSError(-code, 'refused')\n"
        "def down():\n"
        "    with socket.socket() as end: fcntl.ioctl(end, 0x8914, struct.pack('16sh22x', b'eth0', 0))\n"
        "def enter():\n"
        "    if libc.unshare(0x10000000): raise OSError\n"
        "def raw(): socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\n"
        "def tun(): open('/dev/net/tun')\n"
        "print(json.dumps([refused(one) for one in (route, down, enter, raw, tun)]))"
    )
    assert answers == [True] * 5


def test_a_session_reaches_the_agent_by_its_own_loopback(
    agent: RootlessAgent, machine: Machine
) -> None:
    """By the listener that its shim holds, in which nothing of the machine's is."""
    code = (
        "url = os.environ['URL']\nprint(url, flush=True)\nport = int(url.rpartition(':')[2])\n"
        "with socket.create_connection(('127.0.0.1', port)) as end:\n"
        "    sys.exit(0 if end.recv(100) == b'agent' else 7)"
    )
    started = agent.start(code, listener_variables=["URL"])
    port = int(started["output"].rpartition(":")[2])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1).close()
    agent.serve(started["name"], "agent")
    record = agent.end(started["name"], kill=False)
    assert (record["exit_code"], record["message"]) == (0, "")


def test_a_session_without_a_network_reaches_itself_and_the_agent_alone(
    agent: RootlessAgent, machine: Machine
) -> None:
    targets = [("127.0.0.1", machine.ports["loopback"]), (str(OUTSIDE), machine.ports["outside"])]
    code = (
        "port = int(os.environ['URL'].rpartition(':')[2])\n"
        f"answers = [reaches(one) for one in {targets}]\n"
        "names = [name for _, name in socket.if_nameindex()]\n"
        'print(json.dumps([answers, names, open("/etc/resolv.conf").read()]), flush=True)\n'
        "with socket.create_connection(('127.0.0.1', port)) as end:\n"
        "    sys.exit(0 if end.recv(100) == b'agent' else 7)"
    )
    started = agent.start(code, without_network=True, listener_variables=["URL"])
    answers, names, resolvers = json.loads(started["output"])
    assert not {"loopback", "outside"} & set(answers)
    assert (names, resolvers) == (["lo"], "")
    assert not [one for one in psutil.Process(started["shim"]).children() if "pass" in one.name()]
    agent.serve(started["name"], "agent")
    record = agent.end(started["name"], kill=False)
    assert (record["exit_code"], record["message"]) == (0, "")


def test_a_gang_has_the_machines_network(agent: RootlessAgent, machine: Machine) -> None:
    target = ("127.0.0.1", machine.ports["loopback"])
    assert agent.run(f"print(json.dumps(reaches({target})))", gang=True) == "loopback"


def pasta_of(shim: int) -> psutil.Process:
    """The process that carries for the session of a shim."""
    (found,) = [one for one in psutil.Process(shim).children() if one.name().startswith("passt")]
    return found


def test_pasta_ends_with_its_session(agent: RootlessAgent) -> None:
    started = agent.start("print(1, flush=True)" + GOES_ON)
    pasta = pasta_of(started["shim"])
    record = agent.end(started["name"])
    assert record["signal"] == signal.SIGKILL
    assert not pasta.is_running()


def test_pasta_ends_with_a_shim_that_is_killed(agent: RootlessAgent) -> None:
    started = agent.start("print(1, flush=True)" + GOES_ON)
    pasta = pasta_of(started["shim"])
    os.kill(started["shim"], signal.SIGKILL)
    agent.end(started["name"], kill=False)
    wait_for(lambda: not pasta.is_running(), what="pasta is gone")


def test_a_session_without_pasta_loses_its_network_alone(
    agent: RootlessAgent, machine: Machine
) -> None:
    target = (str(OUTSIDE), machine.ports["outside"])
    code = (
        f"print(json.dumps(reaches({target})), flush=True)\n"
        "while not os.path.exists('/nsml/go'): time.sleep(0.01)\n"
        f"words = reaches({target})\n"
        "sys.exit(7 if words != 'outside' else 0)"
    )
    started = agent.start(code)
    assert json.loads(started["output"]) == "outside"
    pasta = pasta_of(started["shim"])
    pasta.kill()
    wait_for(lambda: not pasta.is_running(), what="pasta is gone")
    run = machine.folder / "agent/replicas" / f"{started['name']}.1.0" / "run"
    assert run.is_dir(), [str(one) for one in (machine.folder / "agent/replicas").iterdir()]
    (run / "go").touch()
    record = agent.end(started["name"], kill=False)
    assert (record["exit_code"], record["why"]) == (7, "EXITED")


def folder_in(machine: Machine, *, resolver: str) -> Path:
    """A folder of another agent."""
    folder = Path(tempfile.mkdtemp(prefix="nsml-", dir=machine.folder))
    folder.chmod(0o711)
    (folder / "resolv.conf").write_text(f"nameserver {resolver}\n")
    return folder


def test_a_start_that_pasta_fails_says_why(machine: Machine) -> None:
    folder = folder_in(machine, resolver=str(OUTSIDE))
    made = RootlessAgent(folder)
    try:
        assert made.first["reason"] == ""
        subprocess.run(["ip", "route", "del", "default"], check=True)
        try:
            started = made.start("print(1)")
            record = made.end(started["name"], kill=False)
        finally:
            subprocess.run(["ip", "route", "add", "default", "via", str(OUTSIDE)], check=True)
        assert record["why"] == "START_FAILED"
        assert "pasta makes no network" in record["message"]
    finally:
        made.close()


@pytest.mark.parametrize("host", ["127.0.0.1", str(UPLINK.ip)])
def test_a_resolver_of_this_machine_is_asked_by_pasta(machine: Machine, host: str) -> None:
    folder = folder_in(machine, resolver=host)
    names = Names(host)
    made = RootlessAgent(folder)
    try:
        assert made.first["reason"] == ""
        port = machine.ports["outside"]
        tries = f"print(json.dumps([reaches(('data.lab', {port})), reaches(('{host}', {port}))]))"
        assert made.run(tries) == ["outside", "ConnectionRefusedError"]
    finally:
        made.close()
        names.close()
