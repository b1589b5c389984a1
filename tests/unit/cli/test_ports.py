"""A held port is nobody's by chance, and open to who is meant to have it."""

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from cli.exits import CommandError
from cli.local.data_folder import Choices
from cli.local.ports import LOOPBACK, Held, obstacle, parse_http, parse_ssh
from cli.local.up import DEFAULT_HTTP_PORT, with_http

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux alone")


def listening(port: int) -> socket.socket:
    """As programs listen who name their port."""
    return socket.create_server((LOOPBACK, port))


def test_a_held_port_is_taken_by_who_names_it_and_is_a_server() -> None:
    with Held() as held, socket.socket() as thief:
        port = held.free()
        with pytest.raises(OSError, match="in use"):
            thief.bind((LOOPBACK, port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))
        for _ in range(2):
            with listening(port) as server:
                socket.create_connection((LOOPBACK, port)).close()
                server.accept()[0].close()
        with listening(port), pytest.raises(OSError, match="in use"):
            listening(port)
    listening(port).close()


TEN_PORTS = """
import json, socket
from pathlib import Path
from cli.local.ports import LOOPBACK, Held

Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40009")

def asks(make):
    made = []
    try:
        while len(made) < 20:
            made.append(make())
    except OSError:
        pass
    ports = {one.getsockname()[1] for one in made}
    for one in made:
        one.close()
    return sorted(ports)

def bound(*options):
    one = socket.socket()
    for option in options:
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    one.bind((LOOPBACK, 0))
    return one

with Held() as held, socket.create_server((LOOPBACK, 1000)):
    ways = [
        lambda: bound(),
        lambda: bound(socket.SO_REUSEADDR),
        lambda: bound(socket.SO_REUSEADDR, socket.SO_REUSEPORT),
        lambda: socket.create_connection((LOOPBACK, 1000)),
    ]
    print(json.dumps([held.free(), *map(asks, ways)]))
"""


def test_who_asks_for_any_port_is_never_given_a_held_one() -> None:
    """On a network of its own that has ten of them."""
    command = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    script = ["ip link set lo up && exec $0 -c '" + TEN_PORTS + "'", sys.executable]
    done = subprocess.run([*command, *script], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "ip: not found" in done.stderr:
        pytest.skip(f"no network of one's own: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    held, *given = json.loads(done.stdout)
    others = sorted(set(range(40_000, 40_010)) - {held})
    assert given == [others] * 4


def test_what_is_taken_is_not_held_and_stays_taken() -> None:
    with listening(0) as taken, Held() as held:
        port = taken.getsockname()[1]
        held.hold(LOOPBACK, port)
        assert obstacle(LOOPBACK, port)
    listening(port).close()


@pytest.mark.parametrize("parse", [parse_http, parse_ssh])
def test_where_http_and_ssh_are_answered_is_a_host_and_a_port(parse: Any) -> None:
    assert parse("[::1]:80") == ("::1", 80)
    for text in ("18555", "host", "host:0", "host:65536", "http://host:80", ":80", "host:x"):
        with pytest.raises(CommandError, match="is not HOST:PORT"):
            parse(text)


def test_http_is_on_the_loopback_where_nothing_else_was_asked_for(monkeypatch) -> None:
    with Held() as held, listening(held.free()) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("cli.local.up.DEFAULT_HTTP_PORT", port)
        chosen = with_http(Choices(), held, is_fixed=False)
        assert chosen.http_address.startswith(f"{LOOPBACK}:")
        assert chosen.http_address != f"{LOOPBACK}:{port}", "that is another program's"
        assert with_http(chosen, held, is_fixed=False) == chosen
        users = Choices(port=(free := held.free()), http=f"{LOOPBACK}:{free}")
        assert with_http(users, held, is_fixed=False).http != users.http, "the port of users"
        asked = Choices(http=f"{LOOPBACK}:{port}")
        with pytest.raises(CommandError):
            with_http(asked, held, is_fixed=True)
        assert with_http(Choices(http="none"), held, is_fixed=True).http_address == ""
        assert with_http(Choices(listen="0.0.0.0:1"), held, is_fixed=False).http_address == ""
    assert DEFAULT_HTTP_PORT == 18_555
