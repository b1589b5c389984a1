"""Messages to webhooks go to real servers: over HTTP and TLS, to the address that was looked at, in bounded time."""

from __future__ import annotations

import asyncio
import http.server
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.access.authority import make_authority
from controlplane.access.listeners import networks_of_this_host
from controlplane.core.webhook_targets import target_of
from controlplane.domain.errors import InvalidRequest, StateConflict
from controlplane.notices import webhook_delivery as posting
from controlplane.notices.webhook_delivery import Poster
from nsml.common.clock import SystemClock
from nsml.common.hosts import is_within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps what comes; answers as its path says."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.said.append((self.path, self.headers["Host"], body))  # type: ignore[attr-defined]
        status = int(self.path.rpartition("/")[2])
        self.send_response(status)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/200")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def receiver(context: ssl.SSLContext | None = None) -> Iterator[Any]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    server.said = []  # type: ignore[attr-defined]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url(server: Any, path: str, scheme: str = "http", host: str = "127.0.0.1") -> Any:
    return target_of(f"{scheme}://{host}:{server.server_address[1]}{path}", allows_private=True)


async def test_a_message_is_posted_and_no_redirect_is_followed() -> None:
    with receiver() as server:
        post = Poster(allows_private=True)
        assert await post(url(server, "/hook/204"), b'{"text": "hi"}', owner="kim") == 204
        assert await post(url(server, "/away/302"), b"{}", owner="kim") == 302
        host = f"127.0.0.1:{server.server_address[1]}"
        assert server.said == [("/hook/204", host, b'{"text": "hi"}'), ("/away/302", host, b"{}")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
async def test_this_machine_is_not_called_by_whatever_name(host: str) -> None:
    with receiver() as server:
        with pytest.raises(InvalidRequest, match="private network"):
            await Poster(allows_private=False)(url(server, "/200", host=host), b"{}", owner="kim")
        assert server.said == []


async def test_the_certificate_is_looked_at_by_the_name_and_not_by_the_address(
    tmp_path: Path,
) -> None:
    authority = make_authority(SystemClock())
    pair = authority.issue_server(["localhost"])
    (tmp_path / "pair.pem").write_bytes(pair.key + pair.chain)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair.pem")
    roots = authority.pem.decode()
    with receiver(context) as server:
        post = Poster(allows_private=True, roots=roots)
        assert await post(url(server, "/200", "https", "localhost"), b"{}", owner="kim") == 200
        for wrong, host in ((post, "127.0.0.1"), (Poster(allows_private=True), "localhost")):
            with pytest.raises(StateConflict, match="cannot be reached"):
                await wrong(url(server, "/secret/200", "https", host), b"{}", owner="kim")
        assert len(server.said) == 1


async def test_who_does_not_answer_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = target_of(
            f"http://127.0.0.1:{silent.getsockname()[1]}/secret", allows_private=True
        )
        with pytest.raises(StateConflict, match="does not answer in time") as refused:
            await Poster(allows_private=True)(target, b"{}", owner="kim")
        assert "secret" not in str(refused.value)


async def test_where_nobody_listens_is_said_without_the_path() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    target = target_of(f"http://127.0.0.1:{port}/secret", allows_private=True)
    with pytest.raises(StateConflict, match="cannot be reached") as refused:
        await Poster(allows_private=True)(target, b"{}", owner="kim")
    assert "secret" not in str(refused.value)


async def is_over(post: Poster) -> None:
    """Return once no thread sends."""
    async with asyncio.timeout(60):
        while post._sending:  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.005)


@contextmanager
def talker(said: bytes, *, repeats: bytes = b"", pause_s: float = 0.0) -> Iterator[int]:
    """The port of a server that says something, and repeats something until nobody hears it."""
    gone = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(said)
            while repeats and not gone.wait(pause_s):
                connection.send(repeats)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            gone.set()
            thread.join()


@pytest.mark.parametrize(
    ("said", "repeats"),
    [
        (b"", b"x" * 1_000),
        (b"HTTP/1.1 ", b"2"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 100 Continue\r\n", b"A: b\r\n"),
        (b"SSH-2.0-OpenSSH\r\n", b""),
        (b"HTTP/1.1 20x OK\r\n\r\n", b""),
    ],
)
async def test_of_an_answer_some_kilobytes_are_read_until_it_says_a_status(
    said: bytes, repeats: bytes
) -> None:
    with talker(said, repeats=repeats) as port:
        target = target_of(f"http://127.0.0.1:{port}/secret", allows_private=True)
        with pytest.raises(StateConflict, match="cannot be reached"):
            await Poster(allows_private=True)(target, b"{}", owner="kim")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 204 No Content\r\n",
        b"HTTP/1.0 204\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 Fine\r\n",
    ],
)
async def test_what_follows_the_status_is_not_waited_for(said: bytes) -> None:
    with talker(said, repeats=b"endless: header\r\n") as port:
        target = target_of(f"http://127.0.0.1:{port}/", allows_private=True)
        assert await Poster(allows_private=True)(target, b"{}", owner="kim") == 204


async def test_a_handshake_that_drips_holds_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "WITHIN_S", 0.3)
    post = Poster(allows_private=True)
    record = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"
    with talker(record, repeats=b"\0", pause_s=0.05) as port:
        target = target_of(f"https://localhost:{port}/", allows_private=True)
        with pytest.raises(StateConflict, match="does not answer in time"):
            await post(target, b"{}", owner="kim")
        await is_over(post)


class Names:
    """What names stand for: a look-up of `slow...` lasts until it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.let_go.wait(60)
        address = "93.184.216.34" if self.asked.count(host) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(posting.socket, "getaddrinfo", names)
    yield names
    names.let_go.set()


async def test_a_name_is_looked_up_once_and_that_address_is_called(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it would be this machine."""
    called: list[Any] = []

    def create_connection(address: Any, **_: Any) -> Any:
        called.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(posting.socket, "create_connection", create_connection)
    target = target_of("https://rebinds.example/", allows_private=False)
    with pytest.raises(StateConflict, match="cannot be reached"):
        await Poster(allows_private=False)(target, b"{}", owner="kim")
    assert (names.asked, called) == (["rebinds.example"], [("93.184.216.34", 443)])


async def test_a_network_of_this_machine_is_not_called_although_it_is_public(names: Names) -> None:
    target = target_of("https://near.example/", allows_private=False)
    post = Poster(allows_private=False, own=lambda: [ip_network("93.184.216.0/24")])
    with pytest.raises(InvalidRequest, match="private network"):
        await post(target, b"{}", owner="kim")
    assert is_within("127.0.0.1", networks_of_this_host())


async def test_slow_names_of_one_user_keep_no_other_user_waiting(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "WITHIN_S", 0.2)
    post = Poster(allows_private=False)
    slow = target_of("https://slow.example/", allows_private=False)
    sent = [post(slow, b"{}", owner="eve") for _ in range(100)]
    ends = await asyncio.gather(*sent, return_exceptions=True)
    assert all(isinstance(one, StateConflict) for one in ends)
    async with asyncio.timeout(60):
        while len(names.asked) < posting.MOST_OF_USER:  # noqa: ASYNC110 - of threads, which may begin late
            await asyncio.sleep(0.005)
    assert names.asked == ["slow.example"] * posting.MOST_OF_USER, "they still last"
    monkeypatch.setattr(posting, "WITHIN_S", 30.0)
    monkeypatch.setattr(post, "_own", lambda: [ip_network("93.0.0.0/8")])
    quick = target_of("https://quick.example/", allows_private=False)
    with pytest.raises(InvalidRequest):
        await post(quick, b"{}", owner="kim")
    names.let_go.set()
    await is_over(post)
