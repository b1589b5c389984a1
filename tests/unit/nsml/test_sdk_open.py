"""`nsml.open`: the file that is meant, wherever it is, and a connection that breaks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import nsml
from nsml import _streams

TEXT = "one\ntwo\nthree\n"


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "digits/a").mkdir(parents=True)
    (tmp_path / "digits/a/b.txt").write_text(TEXT)
    monkeypatch.setenv("NSML_DATASET_NAME", os.pathsep.join(["other", "digits"]))
    monkeypatch.setenv("NSML_DATASET_PATH", os.pathsep.join(["/none", str(tmp_path / "digits")]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "path",
    ["digits/a/b.txt", "/data/digits/a/b.txt", "s3://digits/a/b.txt", Path("digits/a/b.txt")],
)
def test_a_dataset_that_was_fetched_is_read_where_it_is(fetched: Path, path: Any) -> None:
    assert nsml.open(path).readlines() == TEXT.splitlines(keepends=True)
    assert nsml.open(str(fetched / "digits/a/b.txt"), "rb").read() == TEXT.encode()


@pytest.mark.usefixtures("fetched")
def test_a_path_without_a_dataset_is_told_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSML_STREAMED", "big")
    for path in ("f2", "x/f2", "/data/x/f2", "s3://x/f2"):
        with pytest.raises(FileNotFoundError) as caught:
            nsml.open(path)
        assert "such as other/f2; there are other, digits, big (streamed)" in str(caught.value)
    for path in ("/etc/none", "digits/none"):  # the machine's, and one of a dataset
        with pytest.raises(FileNotFoundError) as caught:
            nsml.open(path)
        assert "there are" not in str(caught.value)
        assert caught.value.errno == 2


@pytest.mark.usefixtures("fetched")
def test_what_is_not_there_and_what_would_write() -> None:
    with pytest.raises(FileNotFoundError):
        nsml.open("digits/none")
    with pytest.raises(FileNotFoundError, match="no dataset mnist"):
        nsml.open("s3://mnist/x")
    with pytest.raises(ValueError, match="reads only"):
        nsml.open("digits/a/b.txt", "w")


def test_importing_all_names_leaves_the_built_in_one() -> None:
    code = (
        "from nsml import *; import builtins, nsml; assert open is builtins.open is not nsml.open"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Breaking(BaseHTTPRequestHandler):
    """Serves TEXT; of each two answers the first is cut off or an error."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []  # noqa: RUF012

    def _head(self, status: int, size: int) -> None:
        self.send_response(status)
        self.send_header("content-length", str(size))
        self.end_headers()

    def do_HEAD(self) -> None:
        known = {"/big/a%20b": 200, "/big/half": 200, "/big/damaged": 410}
        self._head(known.get(self.path, 404), len(TEXT))

    def do_GET(self) -> None:
        wanted = self.headers["range"]
        self.asked.append(wanted)
        first, last = map(int, re.findall("[0-9]+", wanted))
        if self.path == "/big/half":  # of which the rest is damaged
            is_there = first < 5
            self._head(206 if is_there else 410, last + 1 - first if is_there else 0)
            self.wfile.write(TEXT.encode()[first : min(last + 1, 5)])
            self.close_connection = True
            return
        match len(self.asked) % 3:
            case 1:
                self._head(206, last + 1 - first)
                self.close_connection = True
            case 2:
                self._head(503, 0)
            case _:
                self._head(206, last + 1 - first)
                self.wfile.write(TEXT.encode()[first : last + 1])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Breaking]]:
    Breaking.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for name, value in {
            "NSML_STREAMED": os.pathsep.join(["other", "big"]),
            "NSML_S3_ENDPOINT_URL": url,
            "NSML_S3_ACCESS_KEY_ID": "key",
            "NSML_S3_SECRET_ACCESS_KEY": "secret",
            "http_proxy": "http://127.0.0.1:9",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(_streams, "_PAUSES_S", (0.001, 0.001))
        yield Breaking
        server.shutdown()


def test_what_is_streamed_is_read_in_ranges_until_they_come_whole(
    endpoint: type[Breaking],
) -> None:
    with nsml.open("big/a b", "rb", 4) as file:
        assert file.read(2) == b"on"
        assert file.seek(-3, os.SEEK_END) == len(TEXT) - 3
        assert file.read() == TEXT[-3:].encode()
        assert (file.read(), file.tell(), file.seekable()) == (b"", len(TEXT), True)
    assert endpoint.asked == ["bytes=0-3"] * 3 + [f"bytes={len(TEXT) - 3}-{len(TEXT) - 1}"] * 3
    assert nsml.open("/data/big/a b").readlines() == TEXT.splitlines(keepends=True)
    with pytest.raises(FileNotFoundError, match="no such file"):
        nsml.open("big/none")
    with pytest.raises(OSError, match="nsml dataset push of the same files repairs it"):
        nsml.open("big/damaged")
    half = nsml.open("big/half", "rb", 4)
    assert half.read(5) == TEXT[:5].encode(), "what came is not asked for again"
    with pytest.raises(OSError, match="damaged in the object store"):
        half.read()


def test_an_endpoint_that_never_answers_is_told_after_a_while(
    endpoint: type[Breaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    del endpoint
    monkeypatch.setattr(_streams, "_WITHIN_S", 0.0)
    monkeypatch.setenv("NSML_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="does not answer"):
        nsml.open("big/a b")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_and_its_child_have_connections_of_their_own(endpoint: type[Breaking]) -> None:
    del endpoint
    code = (
        "import os, nsml\n"
        "file = nsml.open('big/a b', 'rb', 1)\n"
        "file.read(1)\n"
        "child = os.fork()\n"
        "rest = file.read()\n"
        f"assert rest == {TEXT[1:].encode()!r}, rest\n"
        "assert child == 0 or os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
