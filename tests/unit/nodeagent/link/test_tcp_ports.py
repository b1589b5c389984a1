"""TCP ports of sessions: what the kernel's tables say, and whose listener is reached in which network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.link.tcp_ports import NoListener, listener_on, listeners, port_of
from tests.support.scripted_platform import session_id

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTENING = """\
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
while True:
    server.accept()[0].sendall(b"served")
"""


def row(address: str, state: str = "0A", inode: int = 7) -> str:
    return f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1\n"


def test_ports_are_told_from_names() -> None:
    names = ["8888", "1", "65535", "0", "65536", "08", "web", "88a"]
    assert [port_of(name) for name in names] == [8888, 1, 65535, None, None, None, None, None]


@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are of such a machine")
def test_the_tables_of_the_kernel_are_read() -> None:
    ipv4 = HEAD + row("0100007F:22B8") + row("00000000:22B9") + row("0100007F:22B8", state="01")
    ipv6 = HEAD + row("00000000000000000000000000000000:22B8", inode=8)
    ipv6 += row("B80D0120000000000000000001000000:22BA", inode=9)
    assert [(one.address, one.inode) for one in listeners(8888, ipv4, ipv6)] == [
        ("127.0.0.1", 7),
        ("::1", 8),
    ]
    assert [one.address for one in listeners(8889, ipv4, ipv6)] == ["127.0.0.1"]
    assert [one.address for one in listeners(8890, ipv4, ipv6)] == ["2001:db8::1"]
    assert not listeners(22, ipv4, "")


@contextmanager
def session(folder: ReplicaFolder, *before: str, address: str = "127.0.0.1") -> Iterator[int]:
    """A program that listens, with the claim of a shim; its port."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", LISTENING, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline()
        if not port:
            pytest.skip(f"no such network here: {process.communicate()[1][-200:]}")
        claim(folder, process.pid)
        yield int(port)
    finally:
        process.kill()
        process.communicate()


def claim(folder: ReplicaFolder, pid: int) -> None:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    folder.shim.write_text(json.dumps({"pid": pid, "start_ticks": int(ticks), "boot_id": boot}))


def served(folder: ReplicaFolder, port: int) -> bytes:
    visit = listener_on(folder, REPLICA, port)
    with visit.socket() as made:
        made.settimeout(60)
        made.connect((visit.listener.address, port))
        return made.recv(6)


@pytest.fixture
def folder(tmp_path: Path) -> ReplicaFolder:
    made = ReplicaFolders(tmp_path).of(REPLICA)
    made.create()
    return made


def test_a_port_of_the_machine_only_where_the_session_holds_it(folder: ReplicaFolder) -> None:
    with session(folder) as port:
        assert served(folder, port) == b"served"
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(NoListener) as refused:
            listener_on(folder, REPLICA, other.getsockname()[1])
        assert "belongs to another program" in str(refused.value)
        with pytest.raises(NoListener, match="no program of the session listens on TCP port 1"):
            listener_on(folder, REPLICA, 1)
    with pytest.raises(NoListener, match="does not run here"):
        listener_on(folder, REPLICA, port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::"])
@pytest.mark.parametrize("kind", ["as root", "below a user namespace"])
def test_a_port_in_a_network_of_the_sessions_own(
    folder: ReplicaFolder, kind: str, address: str
) -> None:
    enter = ["unshare", "-n"] if kind == "as root" else ["unshare", "-Urn"]
    up = [*enter, "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    with session(folder, *up, address=address) as port:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):  # here it is another's
            assert served(folder, port) == b"served"
        assert served(folder, port) == b"served"


def test_an_agent_without_root_sends_a_process_there(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads may not enter a user namespace."""

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("nodeagent.link.tcp_ports.inside", refused)
    up = ["unshare", "-Urn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    with session(folder, *up) as port:
        assert served(folder, port) == b"served"
