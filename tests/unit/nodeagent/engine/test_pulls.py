"""What users learn of a pull that fails, and that one has an end: an engine's answers by hand."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from nodeagent.engine.client import Engine
from nodeagent.engine.pulls import PullFailed, PullProblem, pull_image

SECRET = "root:x:0:0:admin-token-4711"


class _Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"ApiVersion": "1.41", "Version": "20.10"}).encode())

    def do_POST(self) -> None:
        self.server.asked.append(dict(self.headers.items()) | {"path": self.path})
        self.server.answers(self)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def says(self, *words: object) -> None:
        self._answer(200, b"".join(json.dumps(one).encode() + b"\r\n" for one in words))

    def refuses(self, status: int, message: str) -> None:
        self._answer(status, json.dumps({"message": message}).encode())

    def begins_and_hangs(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        word = json.dumps({"status": "Pulling from x"}).encode() + b"\r\n"
        self.wfile.write(f"{len(word):x}\r\n".encode() + word + b"\r\n")
        self.hangs()

    def hangs(self) -> None:
        self.server.hung.set()
        self.rfile.read(1)
        self.server.let_go.set()

    def address_string(self) -> str:
        return "test"

    def log_message(self, *_words: object) -> None:
        pass


class FakePulls(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Call)
        self.asked: list[dict[str, str]] = []
        self.answers: Callable[[_Call], None] = _Call.hangs
        self.hung, self.let_go = threading.Event(), threading.Event()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[FakePulls]:
    with FakePulls(tmp_path / "s") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def pull(server: FakePulls, **more: object) -> list[str]:
    engine = Engine(Path(str(server.server_address)))
    options = {"credentials": None, "look": lambda: None, **more}
    return [one.text() for one in pull_image(engine, "ghcr.io/lab/x:1", **options)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (f"error parsing HTTP 404 response body: invalid character: {SECRET!r}", "UNANSWERED"),
        (f"Get http://127.0.0.1:80/v2/: dial tcp: connection refused {SECRET}", "UNANSWERED"),
        ("Get https://x/v2/: x509: certificate signed by unknown authority", "UNANSWERED"),
        (f"received unexpected HTTP status: 500 {SECRET}", "UNANSWERED"),
        ("manifest for ghcr.io/lab/x:1 not found: manifest unknown: no such", "ABSENT"),
        (f"pull access denied for x, repository does not exist {SECRET}", "ABSENT"),
        (f"unauthorized: {SECRET}", "ABSENT"),
        ("toomanyrequests: You have reached your pull rate limit", "LIMITED"),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "NO_SPACE"),
        ("no matching manifest for linux/amd64 in the manifest list entries", "PLATFORM"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_failure_is_a_category_and_nothing_from_the_network(
    registry: FakePulls, words: str, problem: str, *, is_late: bool
) -> None:
    if is_late:
        registry.answers = lambda call: call.says({"status": "Pulling from x"}, {"error": words})
    else:
        registry.answers = lambda call: call.refuses(500, words)
    with pytest.raises(PullFailed) as failed:
        pull(registry)
    assert str(failed.value) == PullProblem[problem].value
    assert SECRET not in repr(failed.value.__dict__)


def test_an_answer_that_is_none_is_no_way_to_read_it_either(registry: FakePulls) -> None:
    registry.answers = lambda call: call._answer(404, SECRET.encode())
    with pytest.raises(PullFailed) as failed:
        pull(registry)
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("answers", [_Call.hangs, _Call.begins_and_hangs])
def test_a_pull_that_nobody_waits_for_is_cut(
    registry: FakePulls, answers: Callable[[_Call], None]
) -> None:
    """The engine goes on with a pull for as long as somebody is connected, silent registries too."""

    class Enough(Exception):
        pass

    def look() -> None:
        if registry.hung.is_set():
            raise Enough

    registry.answers = answers
    began = time.monotonic()
    with pytest.raises(Enough):
        pull(registry, look=look)
    assert registry.let_go.wait(60), f"still connected after {time.monotonic() - began:.0f} s"


def test_what_is_announced_as_too_large_is_not_fetched(registry: FakePulls) -> None:
    layer = {"status": "Downloading", "progressDetail": {"current": 1, "total": 6_000_000_000}}
    registry.answers = lambda call: call.says({**layer, "id": "a"}, {**layer, "id": "b"})
    with pytest.raises(PullFailed, match="over this node's size limit"):
        pull(registry, most_bytes=10_000_000_000)
    assert pull(registry, most_bytes=20_000_000_000)[-1] == "0 of 2 layers, 0 of 12000 MB"


def test_credentials_are_for_their_registry_alone(registry: FakePulls, tmp_path: Path) -> None:
    registry.answers = lambda call: call.says({"status": "done"})
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": {"other.io": {"auth": "a2ltOmh1c2g="}}}))
    pull(registry, credentials=config)
    config.write_text(json.dumps({"auths": {"ghcr.io": {"auth": "a2ltOmh1c2g="}}}))
    pull(registry, credentials=config)
    assert ["X-Registry-Auth" in one for one in registry.asked] == [False, True]
    asked = parse_qs(urlsplit(registry.asked[0]["path"]).query)
    assert asked == {"fromImage": ["ghcr.io/lab/x"], "tag": ["1"]}
