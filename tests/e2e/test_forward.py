"""Tunnels: `nsml forward` to a program that serves HTTP on its Unix socket, `nsml top` to its node's agent."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.platform import PROGRAMS, ROOT
from cli.local.ports import Held
from tests.e2e.platforms import LEVELS, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

SERVER = """\
import http.server, os, socketserver, threading

class Turn(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def address_string(self):
        return "a client"

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

folder = os.environ["NSML_RUN_DIR"] + "/tunnel"
server = Server(folder + "/web", Turn)
os.symlink("web", folder + "/link")
inner = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Turn)
threading.Thread(target=inner.serve_forever, daemon=True).start()
print("port", inner.server_address[1], flush=True)
print("serving", flush=True)
server.serve_forever()
"""
MEGABYTE = 1 << 20
DOCUMENTATION = ROOT / "docs/sdk-protocol.md"


@contextmanager
def forwarding(platform: Platform, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that `nsml forward ARGUMENTS` prints, and its process; interrupted at the end."""
    process = subprocess.Popen(
        [str(PROGRAMS / "nsml"), "forward", *arguments],
        env=platform.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def turned(address: str, body: bytes) -> bytes:
    """What the program answers to `body`, over a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("POST", "/", body)
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with platform_of(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def session(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    code = write_program(tmp_path_factory.mktemp("serving") / "code", SERVER)
    name = platform.nsml("run", "-g", "0", "-o", "name", cwd=code).stdout.strip()
    wait_for(lambda: "serving" in platform.nsml("logs", name).stdout, what="the program serves")
    return name


@pytest.mark.every_time
def test_a_megabyte_each_way_on_ten_connections_at_once(platform: Platform, session: str) -> None:
    bodies = [os.urandom(MEGABYTE) for _ in range(10)]
    with forwarding(platform, session, "web") as (address, _), ThreadPoolExecutor(10) as pool:
        answers = pool.map(lambda body: turned(address, body), bodies)
        assert list(answers) == [body[::-1] for body in bodies]


def test_only_the_user_who_forwards_is_answered(platform: Platform, session: str) -> None:
    if os.geteuid():
        pytest.skip("to be another user takes root")
    with forwarding(platform, session, "web") as (address, process):
        host, port = address.split(":")
        request = r"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
        script = f"exec 3<>/dev/tcp/{host}/{port} && printf '{request}' >&3 && cat <&3"
        command = ["/bin/bash", "-c", script]
        stranger = subprocess.run(
            command, user=65_534, cwd="/", capture_output=True, text=True, check=False, timeout=60
        )
        assert (stranger.returncode != 0, stranger.stdout) == (True, ""), stranger
        assert turned(address, b"abc") == b"cba"
        process.send_signal(signal.SIGINT)
        assert "refused a connection of another user" in process.communicate(timeout=60)[1]


def test_a_page_whose_name_was_led_here_is_not_answered(platform: Platform, session: str) -> None:
    def answer(address: str, host: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            connection.request("POST", "/", b"abc", {"Host": host})
            return connection.getresponse().status
        finally:
            connection.close()

    with forwarding(platform, session, "web", "--host", "box.lab") as (address, _):
        names = ("rebound.example", "localhost:80", "127.0.0.1.example", "[::1]:80", "BOX.lab:6006")
        assert [answer(address, name) for name in names] == [421, 200, 421, 200, 200]


def test_the_port_may_be_chosen_and_ctrl_c_ends(platform: Platform, session: str) -> None:
    with Held() as held:
        port = str(held.free())
        for _ in range(2):  # the second time where connections were a moment ago
            with forwarding(platform, session, "web", "--port", port) as (address, process):
                assert address == f"127.0.0.1:{port}"
                assert turned(address, b"abc") == b"cba"
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130


def test_the_server_in_the_documentation_serves(platform: Platform, tmp_path: Path) -> None:
    (program,) = re.findall(r"```py\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    code = write_program(tmp_path / "code", f"print('starts', flush=True)\n{program}")
    name = platform.nsml("run", "-g", "0", "-o", "name", cwd=code).stdout.strip()
    wait_for(lambda: "starts" in platform.nsml("logs", name).stdout, what="the program runs")
    with forwarding(platform, name, "web") as (address, _):
        wait_for(
            lambda: fetched(address) == (code / "main.py").read_bytes(),
            what="it serves its own folder",
        )
    platform.nsml("stop", "-y", name)


def fetched(address: str) -> bytes:
    """main.py as the program in the documentation serves it; nothing before it serves."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/main.py")
        return connection.getresponse().read()
    except (ConnectionError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


@pytest.mark.parametrize("service", ["nothing", "link"])
def test_what_is_not_served_resets_the_connection(
    platform: Platform, session: str, service: str
) -> None:
    with forwarding(platform, session, service) as (address, process):
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            turned(address, b"abc")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert f"nothing serves '{service}'" in process.communicate(timeout=60)[1]


def test_a_tcp_port_of_the_session_and_no_other(platform: Platform, session: str) -> None:
    port = platform.nsml("logs", session).stdout.split()[1]
    body = os.urandom(MEGABYTE)
    with forwarding(platform, session, port) as (address, _):
        assert turned(address, body) == body[::-1]
    with Held() as held, socket.create_server(("127.0.0.1", held.free())) as other:
        number = str(other.getsockname()[1])
        with forwarding(platform, session, number) as (address, process):
            assert address != f"127.0.0.1:{number}", "the port is taken here: another is chosen"
            assert process.stderr is not None
            said = [process.stderr.readline() for _ in range(2)]
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                turned(address, b"abc")
    assert f"nothing listens on port {number} in this session" in said[1]


def test_a_stranger_finds_no_session(platform: Platform, session: str, tmp_path: Path) -> None:
    stranger = user_of(platform, "stranger", tmp_path)
    done = platform.nsml("forward", session, "web", check=False, environment=stranger)
    assert (done.returncode, done.stdout) == (5, ""), done.stderr


def test_the_processes_of_a_session_and_no_others(platform: Platform, tmp_path: Path) -> None:
    code = write_program(
        tmp_path / "code",
        """\
import os, subprocess, sys
busy = subprocess.Popen([sys.executable, "-c", "while True: pass", "--\\x1b[2J"])
held = bytearray(64 << 20)
print("pids", os.getpid(), busy.pid, flush=True)
busy.wait()
""",
    )
    name = platform.nsml("run", "-g", "0", "-o", "name", "-a", "--lr 0.1", cwd=code).stdout.strip()
    logged = wait_for(
        lambda: re.search(r"pids (\d+) (\d+)\n", platform.nsml("logs", name).stdout),
        what="the program runs",
    )
    main, busy = map(int, logged.groups())

    def looked() -> dict[int, dict[str, Any]] | None:
        """Once it was given a processor while it was looked at, which a busy machine may not do at once."""
        found = {one["pid"]: one for one in platform.json("top", name)["items"]}
        assert set(found) == {main, busy}
        return found if found[busy]["cpu_cores"] > 0.05 else None

    found = wait_for(looked, what="one of them computes")
    assert found[busy]["command"].endswith("--\x1b[2J")
    assert found[main]["cpu_cores"] < 0.05
    assert found[main]["command"].endswith("main.py --lr 0.1")
    assert found[main]["memory_bytes"] > 64 << 20
    cmdline = Path(f"/proc/{found[busy]['node_pid']}/cmdline").read_bytes()
    assert cmdline.endswith(b"--\x1b[2J\0")
    shown = platform.nsml("top", name).stdout
    assert len(shown.splitlines()) == 4
    assert "\x1b" not in shown

    no_rank = platform.nsml("top", name, "--rank", "1", check=False)
    assert (no_rank.returncode, no_rank.stdout) == (2, "")
    assert "has no replica 1" in no_rank.stderr
    stranger = user_of(platform, "onlooker", tmp_path)
    hidden = platform.nsml("top", name, check=False, environment=stranger)
    assert (hidden.returncode, hidden.stdout) == (5, ""), hidden.stderr

    platform.nsml("stop", "-y", name)
    wait_for(lambda: platform.json("ps", "-a")["items"][0]["state"] == "STOPPED", what="it is over")
    over = platform.nsml("top", name, check=False)
    assert (over.returncode, over.stdout) == (6, "")
    assert "has ended" in over.stderr


def test_a_stopped_session_ends_its_tunnels(platform: Platform, tmp_path: Path) -> None:
    code = write_program(tmp_path / "code", SERVER)
    name = platform.nsml("run", "-g", "0", "-o", "name", cwd=code).stdout.strip()
    wait_for(lambda: "serving" in platform.nsml("logs", name).stdout, what="the program serves")
    with forwarding(platform, name, "web") as (address, process):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.connect()
        connection.sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n")  # and no body
        platform.nsml("stop", "-y", name)
        # The end, or a reset: in no case an answer.
        with suppress(ConnectionResetError):
            assert connection.sock.recv(1) == b""
        connection.close()
        wait_for(
            lambda: platform.json("ps", "-a")["items"][0]["state"] == "STOPPED", what="it is over"
        )
        assert process.communicate(timeout=60)[1].endswith(f"session {name} has ended\n")
        assert process.returncode == 0


def test_where_python_stands_in_each_replica_of_a_session(
    platform: Platform, tmp_path: Path
) -> None:
    code = write_program(
        tmp_path / "code",
        """\
import os, subprocess, sys, time

def waits(depth, secret="of its owner alone"):
    if depth:
        return waits(depth - 1)
    print("waits", flush=True)
    time.sleep(600)

if len(sys.argv) < 2:
    subprocess.Popen([sys.executable, "main.py", "child"])
    waits(2)
time.sleep(600)
""",
    )
    name = platform.nsml("run", "-g", "0", "-o", "name", cwd=code).stdout.strip()
    wait_for(
        lambda: platform.nsml("stacks", name, check=False).stdout.count("(idle)") == 2,
        what="both programs wait",
    )

    shown = platform.nsml("stacks", name).stdout
    assert [
        re.sub(r"^pid \d+  \S*python( -u)? ", "python ", line) for line in shown.splitlines()
    ] == [
        "python main.py",
        "  MainThread (idle)",
        "    <module>  main.py:11",
        "    waits     main.py:5",
        "    waits     main.py:5",
        "    waits     main.py:7",
        "python main.py child",
        "  MainThread (idle)",
        "    <module>  main.py:12",
    ]
    assert 'secret = "of its owner alone"' in platform.nsml("stacks", name, "--locals").stdout
    [replica] = platform.json("stacks", name)["items"]
    processes = {one["pid"]: one for one in platform.json("top", name)["items"]}
    assert {one["pid"] for one in replica["processes"]} == set(processes)

    stranger = user_of(platform, "passer-by", tmp_path)
    hidden = platform.nsml("stacks", name, check=False, environment=stranger)
    assert (hidden.returncode, hidden.stdout) == (5, ""), hidden.stderr
    platform.nsml("stop", "-y", name)
    wait_for(lambda: platform.json("ps", "-a")["items"][0]["state"] == "STOPPED", what="it is over")
    over = platform.nsml("stacks", name, check=False)
    assert (over.returncode, over.stdout) == (6, "")
