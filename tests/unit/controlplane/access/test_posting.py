"""Messages to webhooks go to real servers: over HTTP and TLS, to the address that was looked at, in bounded time."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.access import posting
from controlplane.access.authority import make_authority
from controlplane.access.posting import Poster
from controlplane.domain.errors import InvalidRequest, StateConflict
from controlplane.domain.webhooks import target_of
from nsml.clock import SystemClock

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
        assert await post(url(server, "/hook/204"), b'{"text": "hi"}') == 204
        assert await post(url(server, "/away/302"), b"{}") == 302
        host = f"127.0.0.1:{server.server_address[1]}"
        assert server.said == [("/hook/204", host, b'{"text": "hi"}'), ("/away/302", host, b"{}")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
async def test_this_machine_is_not_called_by_whatever_name(host: str) -> None:
    with receiver() as server:
        with pytest.raises(InvalidRequest, match="private network"):
            await Poster(allows_private=False)(url(server, "/200", host=host), b"{}")
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
        assert await post(url(server, "/200", "https", "localhost"), b"{}") == 200
        for wrong, host in ((post, "127.0.0.1"), (Poster(allows_private=True), "localhost")):
            with pytest.raises(StateConflict, match="cannot be reached"):
                await wrong(url(server, "/secret/200", "https", host), b"{}")
        assert len(server.said) == 1


async def test_who_does_not_answer_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = target_of(
            f"http://127.0.0.1:{silent.getsockname()[1]}/secret", allows_private=True
        )
        with pytest.raises(StateConflict, match="does not answer in time") as refused:
            await Poster(allows_private=True)(target, b"{}")
        assert "secret" not in str(refused.value)


async def test_where_nobody_listens_is_said_without_the_path() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    target = target_of(f"http://127.0.0.1:{port}/secret", allows_private=True)
    with pytest.raises(StateConflict, match="cannot be reached") as refused:
        await Poster(allows_private=True)(target, b"{}")
    assert "secret" not in str(refused.value)
