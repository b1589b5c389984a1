"""The server on loopback for libraries that report to a server: what strangers and hostile clients get from it."""

from __future__ import annotations

import gzip
import http.client
import json
import math
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsml._echo import _http, _receiver
from nsml._echo._http import Answer, Request, RequestError
from nsml._echo._receiver import Receiver, answers
from tests.support.echoes import environment_of
from tests.unit.nsml.test_sdk_install import every_python

LIMIT_S = 60


def handle(request: Request) -> Any:
    """Answer in each of the possible ways."""
    match request.path:
        case "/bytes":
            return b"raw"
        case "/answer":
            return Answer({"made": 1}, 201, headers={"X-More": "yes"})
        case "/refused":
            raise RequestError(403, "not you")
        case "/broken":
            raise ValueError("deliberate")
        case "/json":
            return len(request.body.json())
        case "/skipped":
            return request.body.skip()
        case "/unread":
            return None
    body = request.body.read()
    return {
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "body": body.decode("latin-1"),
    }


@pytest.fixture
def served() -> Iterator[Receiver]:
    one = Receiver()
    one.add("/library", handle)
    one.url()
    yield one
    one.close()


def port_of(served: Receiver) -> int:
    return int(served.address().rpartition(":")[2])


def ask(
    served: Receiver, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    """Return status and content of the answer to one request with the secret."""
    asking = http.client.HTTPConnection("127.0.0.1", port_of(served), timeout=LIMIT_S)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    asking.request(method, f"/{served.secret}{path}", body, names)
    answer = asking.getresponse()
    content = answer.read()
    asking.close()
    kind = answer.headers["Content-Type"]
    return answer.status, json.loads(content) if kind == "application/json" else content


def raw(served: Receiver, *pieces: bytes, ends: bool = False) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port_of(served)), timeout=LIMIT_S) as asking:
        for piece in pieces:
            asking.sendall(piece.replace(b"SECRET", served.secret.encode()))
        if ends:
            asking.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while piece := asking.recv(1 << 16):
                found += piece
        except ConnectionResetError:
            pass
        return found


def test_handlers_answer_what_is_below_their_prefix(served: Receiver) -> None:
    served.add("/library/own", lambda request: f"own {request.path}")
    assert ask(served, "PUT", "/library/a%20b?x=1&y=", b"text") == (
        200,
        {"method": "PUT", "path": "/a b", "query": {"x": "1", "y": ""}, "body": "text"},
    )
    assert ask(served, "GET", "/library")[1]["path"] == ""
    assert ask(served, "GET", "/library/own/x") == (200, "own /x")
    assert ask(served, "GET", "/librarys") == (404, {"error": "not found"})
    assert ask(served, "GET", "/other") == (404, {"error": "not found"})
    assert ask(served, "GET", "/library/bytes") == (200, b"raw")
    assert ask(served, "POST", "/library/answer") == (201, {"made": 1})
    assert ask(served, "POST", "/library/refused") == (403, {"error": "not you"})
    assert ask(served, "POST", "/library/broken") == (400, {"error": "ValueError: deliberate"})
    assert ask(served, "GET", "/library/../../etc/passwd")[1]["path"] == "/../../etc/passwd"


def test_only_who_has_the_secret_is_answered(served: Receiver) -> None:
    port = port_of(served)
    basic = b64encode(f"api:{served.secret}".encode()).decode()
    wrong = b64encode(b"api:" + b"x" * 40).decode()
    for value, status in [
        (f"Basic {basic}", 200),
        (f"Bearer {served.secret}", 200),
        (f"Basic {wrong}", 404),
        ("Basic ?", 404),
        (f"Bearer {served.secret}x", 404),
        ("", 404),
    ]:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        asking.request("POST", "/library/x", b"text", {"Authorization": value})
        answer = asking.getresponse()
        assert (answer.status, b"body" in answer.read()) == (status, status == 200), value
        asking.close()
    assert answers(served.address(), served.secret)
    assert not answers(served.address(), "x" * 40)
    assert not answers("http://127.0.0.1:1", served.secret)


def test_one_connection_has_many_requests(served: Receiver) -> None:
    asking = http.client.HTTPConnection("127.0.0.1", port_of(served), timeout=LIMIT_S)
    for number in range(200):
        asking.request("POST", f"/{served.secret}/library/{number}", b"x" * number)
        answer = asking.getresponse()
        assert json.loads(answer.read())["body"] == "x" * number
        assert answer.headers["Connection"] is None
    asking.close()
    together = b"GET /SECRET/library/1 HTTP/1.1\r\n\r\nGET /SECRET/library/2 HTTP/1.0\r\n\r\n"
    found = raw(served, together)
    assert found.count(b"HTTP/1.1 200 OK") == 2
    assert b'"/1"' in found
    assert b'"/2"' in found


HEAD = b"POST /SECRET/library/json HTTP/1.1\r\nConnection: close\r\n"
HOSTILE: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\n", 505),
    "no path": (b"GET x HTTP/1.1\r\n\r\n", 400),
    "long head": (b"GET /SECRET/library HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET /SECRET/library HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    "header without a name": (b"GET /SECRET/library HTTP/1.1\r\n: y\r\n\r\n", 400),
    "folded header": (b"GET /SECRET/library HTTP/1.1\r\nX: y\r\n z: 1\r\n\r\n", 400),
    "negative length": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "length of letters": (HEAD + b"Content-Length: 0x10\r\n\r\n", 400),
    "length of 10^30": (HEAD + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n", 400),
    "length of 100 GB": (HEAD + b"Content-Length: 100000000000\r\n\r\n{}", 413),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400),
    "length and chunked": (
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "unknown coding": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "unknown expectation": (HEAD + b"Expect: 200-ok\r\n\r\n", 417),
    "chunk without a length": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "chunk of 2^80": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n", 400),
    "chunk longer than it says": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n0\r\n\r\n",
        400,
    ),
    "long chunk line": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" * 5000 + b"\r\n", 400),
    "no JSON": (HEAD + b"Content-Length: 4\r\n\r\n{no}", 400),
    "deep JSON": (HEAD + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, 400),
    "no gzip": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 400),
    "unknown encoding": (HEAD + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 400),
    "many fields": (b"GET /SECRET/library?" + b"a=1&" * 2000 + b" HTTP/1.1\r\n\r\n", 400),
    "a stranger": (b"POST /library/json HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
    "a guess": (b"POST /" + b"0" * 40 + b"/library HTTP/1.1\r\n\r\n", 404),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_and_end_nothing(served: Receiver, name: str) -> None:
    sent, status = HOSTILE[name]
    found = raw(served, sent, ends=True)
    assert found.startswith(f"HTTP/1.1 {status} ".encode()), found
    assert b'{"error": ' in found
    assert ask(served, "POST", "/library/json", b"[1]") == (200, 1)


def test_contents_of_all_kinds(served: Receiver) -> None:
    assert ask(served, "POST", "/library/json", gzip.compress(b"[1, 2]"), Content_Encoding="gzip")
    chunked = b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\n[1,\r\n2\r\n2]\r\n0\r\nX: y\r\n\r\n"
    assert raw(served, HEAD + chunked).endswith(b"\r\n\r\n2")
    expecting = HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert raw(served, expecting, b"[]").startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
    many = json.dumps(dict.fromkeys(map(str, range(300_000)), 0.5)).encode()
    assert ask(served, "POST", "/library/json", many) == (200, 300_000)
    bomb = gzip.compress(b"[" + b" " * (65 << 20) + b"]")
    status, content = ask(served, "POST", "/library/json", bomb, Content_Encoding="gzip")
    assert (status, content) == (413, {"error": "more than 67108864 bytes"})
    cut = gzip.compress(b"[1, 2]" * 100)[:-4]
    assert ask(served, "POST", "/library/json", cut, Content_Encoding="gzip")[0] == 400


def test_numbers_that_json_lacks_and_long_ones_are_read(served: Receiver) -> None:
    found: list[Any] = []
    served.add("/numbers", lambda request: found.extend(request.body.json()))
    body = b"[NaN, Infinity, -Infinity, " + b"9" * 1000 + b", 7]"
    assert ask(served, "POST", "/numbers", body) == (200, {})
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, math.inf, 7]


def test_what_a_handler_leaves_is_skipped_or_ends_the_connection(served: Receiver) -> None:
    sent = b"POST /SECRET/library/unread HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    again = b"GET /SECRET/library/x HTTP/1.0\r\n\r\n"
    assert raw(served, sent + again).count(b"HTTP/1.1 200") == 2
    long = b"POST /SECRET/library/unread HTTP/1.1\r\nContent-Length: 100000000000\r\n\r\n"
    found = raw(served, long)
    assert found.startswith(b"HTTP/1.1 200")
    assert b"Connection: close" in found
    count = 300
    piece = bytes(1 << 20)
    head = f"PUT /SECRET/library/skipped HTTP/1.0\r\nContent-Length: {count << 20}\r\n\r\n".encode()
    assert raw(served, head, *[piece] * count).endswith(f"\r\n\r\n{count << 20}".encode())


def test_contents_that_are_cut_off_reach_no_handler(served: Receiver) -> None:
    called: list[bytes] = []
    served.add("/called", lambda request: called.append(request.body.read()))
    for rest in (b"Content-Length: 9\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n9\r\n{}"):
        head = b"POST /SECRET/called HTTP/1.1\r\n"
        assert raw(served, head + rest, ends=True) == b""
    assert not called


def test_slow_heads_are_given_up(served: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_HEAD_S", 0.3)
    with socket.create_connection(("127.0.0.1", port_of(served)), timeout=LIMIT_S) as slow:
        ended = b""
        try:
            while not ended:  # a byte at a time, for ever
                slow.sendall(b"G")
                slow.settimeout(0.05)
                try:
                    ended = slow.recv(100)
                    break
                except TimeoutError:
                    continue
        except (BrokenPipeError, ConnectionResetError):
            ended = b""
    assert ended == b"" or ended.startswith(b"HTTP/1.1 408 ")
    assert ask(served, "GET", "/library/x")[0] == 200


def test_strangers_cannot_use_up_the_connections(served: Receiver) -> None:
    before = threading.active_count()
    port = port_of(served)
    known = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    known.request("GET", f"/{served.secret}/library/x")
    assert known.getresponse().read()
    strangers = [
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        for _ in range(3 * _receiver.MOST_CONNECTIONS)
    ]
    for number in range(5):
        assert ask(served, "GET", f"/library/{number}")[0] == 200
    assert threading.active_count() <= before + 2 * _receiver.MOST_CONNECTIONS
    # It was idle, and is not closed for strangers.
    known.request("GET", f"/{served.secret}/library/y")
    assert known.getresponse().status == 200
    known.close()
    for one in strangers:
        one.close()


def test_connections_in_use_are_not_closed_for_others(served: Receiver) -> None:
    waits, goes = threading.Semaphore(0), threading.Event()

    def wait(request: Request) -> str:
        waits.release()
        assert goes.wait(LIMIT_S)
        return "done"

    served.add("/waits", wait)
    found: list[Any] = []
    asking = [
        threading.Thread(target=lambda: found.append(ask(served, "GET", "/waits")))
        for _ in range(_receiver.MOST_CONNECTIONS)
    ]
    for one in asking:
        one.start()
        assert waits.acquire(timeout=LIMIT_S)
    assert ask(served, "GET", "/library/x") == (503, {"error": "too many connections"})
    goes.set()
    for one in asking:
        one.join()
    assert found == [(200, "done")] * _receiver.MOST_CONNECTIONS


FORKS = """
import os, socket, time
from nsml._echo._receiver import answers, receiver
one = receiver()
one.add("/x", lambda request: "parent")
address, secret = one.address(), one.secret
kept = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
kept.sendall(f"GET /{secret}/x HTTP/1.1\\r\\n\\r\\n".encode())
assert b"parent" in kept.recv(1000)
reading, writing = os.pipe()
asking, answering = os.pipe()
child = os.fork()
if child == 0:
    assert answers(address, secret)
    other = receiver()
    assert other is not one and other.secret != secret and other.address() != address
    assert answers(other.address(), other.secret) and not answers(address, other.secret)
    os.write(answering, b"x")
    os.read(reading, 1)
    os._exit(0)
os.read(asking, 1)
one.close()
assert kept.recv(1000) == b""  # although the child lives
assert not answers(address, secret)
os.write(writing, b"x")
assert os.waitpid(child, 0)[1] == 0
print("ended")
"""


@pytest.mark.parametrize("python", every_python())
def test_a_child_has_its_own_and_keeps_no_connection_open(tmp_path: Path, python: str) -> None:
    done = subprocess.run(
        [python, "-W", "ignore", "-c", FORKS],
        env=environment_of(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_the_program_ends_while_clients_are_connected(tmp_path: Path) -> None:
    program = (
        "from nsml._echo._receiver import receiver\n"
        "import time\n"
        "receiver().add('/x', lambda request: time.sleep(600))\n"
        "print(receiver().url('/x'), flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    environment = environment_of(tmp_path)
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as running:
        assert running.stdout is not None
        url = running.stdout.readline().strip()
        port = int(url.split("/")[2].partition(":")[2])
        path = url.partition(f":{port}")[2]
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as asking:
            asking.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            time.sleep(0.2)
            running.communicate("\n", timeout=LIMIT_S)
            assert running.returncode == 0


def test_no_proxy_is_asked_for_it() -> None:
    environment = {"http_proxy": "http://proxy:1", "no_proxy": "a.b"}
    _receiver._bypass_proxies(environment)
    assert environment["no_proxy"] == "a.b,127.0.0.1"
    assert environment["NO_PROXY"] == "127.0.0.1"
    untouched: dict[str, str] = {}
    _receiver._bypass_proxies(untouched)
    assert untouched == {}
