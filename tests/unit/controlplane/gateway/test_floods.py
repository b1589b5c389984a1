"""Clients that hold connections of the HTTP listener keep nobody else from an answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from controlplane.access.authority import make_authority
from controlplane.access.listeners import Identity, take_port
from controlplane.gateway.guard import Guard, Rules, networks
from controlplane.gateway.listener import HttpServer
from controlplane.startup.config import Settings
from nsml.common.clock import SystemClock
from nsml.common.connections import Limits
from nsml.common.local_peers import SESSION_UIDS, uid_of_peer

QUICK = Limits(
    connections=6,
    reserved=2,
    per_address=4,
    handshake_s=0.3,
    head_s=0.3,
    body_s=0.3,
    idle_s=1.0,
    stalled_s=0.3,
    slow_s=0.1,
    closing_s=0.1,
)
PATIENT = Limits(connections=6, reserved=2, per_address=4)
BIG_BYTES = 64 << 20

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def holds(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.005)


class Pages:
    """An application whose pages wait, are large, or read what is sent."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    def app(self) -> Starlette:
        async def wait(_: Request) -> Response:
            self.waiting += 1
            try:
                await self.open.wait()
            finally:
                self.waiting -= 1
            return PlainTextResponse("late\n")

        async def quick(request: Request) -> Response:
            return PlainTextResponse(f"{request.client.host if request.client else ''}\n")

        async def read(request: Request) -> Response:
            return PlainTextResponse(f"{len(await request.body())}\n")

        async def big(_: Request) -> Response:
            return Response(b"x" * BIG_BYTES)

        async def pour(web_socket: WebSocket) -> None:
            await web_socket.accept()
            while True:
                await web_socket.send_bytes(b"x" * (1 << 20))

        return Starlette(
            routes=[
                Route("/healthz", quick, methods=["GET", "POST"]),
                Route("/page", quick),
                Route("/wait", wait),
                Route("/read", read, methods=["POST"]),
                Route("/big", big),
                WebSocketRoute("/pour", pour),
            ]
        )


class Served:
    """A server with these limits, and connections to it."""

    def __init__(self, server: HttpServer, port: int, pages: Pages) -> None:
        self.server = server
        self.port = port
        self.pages = pages
        self.lines: list[asyncio.StreamWriter] = []

    async def line(self, sent: bytes = b"", source: str = "127.0.0.1") -> Line:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(source, 0), limit=1 << 20
        )
        self.lines.append(writer)
        writer.write(sent)
        return reader, writer

    async def get(self, path: str, host: str = "localhost", **headers: str) -> tuple[int, str]:
        source = headers.pop("source", "127.0.0.1")
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        reader, _ = await self.line("\r\n".join([*lines, "", ""]).encode(), source)
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head else 0), body.decode()

    async def until(self, count: int) -> None:
        await holds(lambda: len(self.server.connections_open) == count)


@contextlib.asynccontextmanager
async def serving(
    limits: Limits,
    rules: Rules | None = None,
    *,
    with_tls: bool = False,
    proxies: tuple[str, ...] = (),
    exempt: bool = False,
) -> AsyncIterator[Served]:
    pages = Pages()
    address, taken = take_port("127.0.0.1:0")
    identity = Identity(make_authority(SystemClock()), ["localhost"]) if with_tls else None
    server = HttpServer(
        Guard(pages.app(), rules or Rules()), taken, identity, limits=limits, proxies=proxies
    )
    if not exempt:
        # As if the loopback were any other network.
        server.connections_open._is_exempt = lambda _: False
    running = asyncio.create_task(server.run_until_told())
    served = Served(server, address.port, pages)
    try:
        yield served
    finally:
        for one in served.lines:
            one.close()
        server.should_exit = True
        await running


async def closed(line: Line) -> bytes:
    """What came before the other side closed."""
    said = b""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            while part := await line[0].read(1 << 16):
                said += part
    return said


UPGRADE = (
    b"/pour HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
HALVES = {
    "nothing": b"",
    "half a line": b"GET /he",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ",
    "blank lines": b"\r\n",
    "half a body": b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
    "half a chunk": b"POST /read HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nabc",
    "a body nobody reads": b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
    "half an upgrade": b"GET /pour HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: up",
    # heads that only the library of WebSockets refuses
    "an upgrade with a body": b"GET " + UPGRADE + b"Content-Length: 5\r\n\r\nabcde",
    "an upgrade with a long line": b"GET " + UPGRADE + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
    "an upgrade with many fields": b"GET " + UPGRADE + b"X: a\r\n" * 200 + b"\r\n",
}


@pytest.mark.parametrize("half", HALVES)
async def test_half_a_request_keeps_nobody_from_an_answer(half: str) -> None:
    async with serving(PATIENT) as served:
        halves = [await served.line(HALVES[half]) for _ in range(30)]
        assert await served.get("/healthz") == (200, "127.0.0.1\n")
        assert await served.get("/page") == (200, "127.0.0.1\n")
        assert len(served.server.connections_open) <= PATIENT.per_address
        assert len(halves) == 30


async def test_five_hundred_unfinished_heads_from_many_addresses_change_nothing_for_others() -> (
    None
):
    async with serving(Limits()) as served:
        for number in range(700):
            await served.line(HALVES["half a head"], source=f"127.0.{number % 25}.{number % 7 + 1}")
        for _ in range(5):
            assert (await served.get("/healthz"))[0] == 200
            assert (await served.get("/page"))[0] == 200


@pytest.mark.parametrize("half", [*HALVES, "a trickle"])
async def test_a_whole_head_and_a_whole_body_have_a_deadline(half: str) -> None:
    async with serving(QUICK) as served:
        line = await served.line(HALVES.get(half, HALVES["half a head"]))

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    line[1].write(b"a")
                    await line[1].drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip()) if half == "a trickle" else None
        said = await closed(line)
        if dripping:
            dripping.cancel()
        if half == "a body nobody reads":
            assert b" 200 " in said.partition(b"\r\n")[0]
        else:
            status = said.partition(b"\r\n")[0]
            assert status in {b"", b"HTTP/1.1 408 Request Timeout", b"HTTP/1.1 400 Bad Request"}
        await served.until(0)


async def test_a_request_of_two_lengths_is_refused_and_ends_its_connection() -> None:
    """Whoever stands in front may have gone by the other one, and taken the rest for its body."""
    both = b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    async with serving(PATIENT) as served:
        said = await closed(
            await served.line(both + b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
        )
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1") == 1


async def test_a_second_request_has_the_same_deadlines() -> None:
    async with serving(QUICK) as served:
        line = await served.line(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\nGET /pa")
        said = await closed(line)
        assert said.startswith(b"HTTP/1.1 200")
        assert b" 408 " in said
        idle = await served.line(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await closed(idle)).startswith(b"HTTP/1.1 200")
        await served.until(0)


async def test_unfinished_handshakes_of_tls_end_too_and_count() -> None:
    async with serving(QUICK, with_tls=True) as served:
        for _ in range(20):
            await served.line(b"\x16\x03\x01")
        assert len(served.server.connections_open) <= QUICK.per_address
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

        async def page() -> bytes:
            """b"" where a busy machine takes longer than a client may here."""
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", served.port, ssl=trusting
                )
                with contextlib.closing(writer):
                    writer.write(
                        b"GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                    )
                    return await reader.read()
            return b""

        async with asyncio.timeout(60):
            while not (said := await page()):
                pass
        assert said.startswith(b"HTTP/1.1 200")
        await served.until(0)


@pytest.mark.parametrize("how", ["answer", "websocket"])
async def test_who_reads_nothing_of_an_answer_is_closed(how: str) -> None:
    async with serving(QUICK) as served:
        if how == "answer":
            sent = b"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        else:
            pytest.importorskip("websockets")
            sent = (
                b"GET /pour HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
        deaf = socket.create_connection(("127.0.0.1", served.port))
        with deaf:
            deaf.sendall(sent)
            await served.until(1)
            await served.until(0)


async def test_what_is_busy_leaves_room_for_health() -> None:
    limits = Limits(connections=3, reserved=2, per_address=100)
    async with serving(limits) as served:
        for _ in range(3):
            await served.line(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await holds(lambda: served.pages.waiting == 3)
        for _ in range(4):
            await served.line(HALVES["half a head"])
            assert (await served.get("/healthz"))[0] == 200
        status, words = await served.get("/page")
        assert status == 503
        assert "too many connections" in words
        served.pages.open.set()
        await holds(lambda: served.pages.waiting == 0)
        assert (await served.get("/page"))[0] == 200


async def test_an_address_has_a_limit_that_the_loopback_and_proxies_have_not() -> None:
    async with serving(PATIENT, proxies=("127.0.0.9",), exempt=True) as served:
        assert served.server.connections_open._is_exempt("127.0.0.9")
        assert served.server.connections_open._is_exempt("::1")
        assert not served.server.connections_open._is_exempt("10.0.0.9")
        # A proxy says whose request it is; nobody else does.
        said = {"X-Forwarded-For": "10.1.2.3"}
        assert (await served.get("/page", source="127.0.0.9", **said))[1] == "10.1.2.3\n"
        assert (await served.get("/page", source="127.0.0.8", **said))[1] == "127.0.0.8\n"
    async with serving(Limits(per_address=2)) as served:
        for _ in range(2):
            await served.line(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await holds(lambda: served.pages.waiting == 2)
        assert (await served.get("/page"))[0] == 0
        assert (await served.get("/page", source="127.0.0.2"))[0] == 200


HOSTS = Rules(hosts=frozenset({"cp.lab"}))


@pytest.mark.parametrize(
    ("host", "is_named"),
    [
        ("cp.lab", True),
        ("CP.lab:8000", True),
        ("cp.lab.", True),
        ("localhost:1", True),
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("10.0.0.7", True),
        ("evil.example", False),
        ("evil.example:80", False),
        ("cp.lab.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("", False),
    ],
)
async def test_pages_under_foreign_names_are_refused(host: str, is_named: bool) -> None:
    async with serving(PATIENT, HOSTS) as served:
        status, words = await served.get("/page", host)
        assert status == (200 if is_named else 421)
        assert is_named or "http_hosts" in words
        assert (await served.get("/healthz", host))[0] == 200


async def test_networks_can_be_refused() -> None:
    rules = Rules(refused=networks(["127.0.7.0/24"]))
    async with serving(PATIENT, rules) as served:
        assert (await served.get("/page", source="127.0.7.9"))[0] == 403
        assert (await served.get("/healthz", source="127.0.7.9"))[0] == 200
        assert (await served.get("/page", source="127.0.8.9"))[0] == 200


CALL = """
import os, socket, sys
os.setuid(int(sys.argv[1]))  # who may load no further library here
line = socket.socket()
line.connect(("127.0.0.1", int(sys.argv[2])))
line.sendall(b"GET " + sys.argv[3].encode() + b" HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
while part := line.recv(4096):
    os.write(1, part)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be somebody else")
async def test_programs_of_sessions_are_not_answered() -> None:
    rules = Rules(session_uids=SESSION_UIDS)

    async def call(uid: int, path: str) -> str:
        command = [sys.executable, "-c", CALL, str(uid), str(served.port), path]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, check=True, timeout=60
        )
        return done.stdout.decode().partition(" ")[2]

    async with serving(PATIENT, rules) as served:
        refused = await call(SESSION_UIDS[3], "/page")
        assert refused.startswith("403")
        assert "http_sessions" in refused
        assert (await call(SESSION_UIDS[3], "/healthz")).startswith("200")
        assert (await call(65534, "/page")).startswith("200")


def test_the_account_behind_a_connection_is_told() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as server:
            place = server.getsockname()[:2]
            with socket.create_connection(place) as client:
                accepted, _ = server.accept()
                with accepted:
                    assert uid_of_peer(client.getsockname()[:2], place) == os.getuid()
                    assert uid_of_peer((host, 1), place) is None


def test_settings_that_are_no_networks_are_refused(tmp_path: Any) -> None:
    for name in ("http_proxies", "http_refused"):
        with pytest.raises(ValueError, match=name):
            Settings(data=tmp_path, **{name: ("nonsense",)})  # type: ignore[arg-type]
