"""A registry of images with one image in it, for those who know its password."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import tarfile
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from nodeagent.engine.client import Engine
from nodeagent.engine.images import remove_image
from nodeagent.engine.private_images import PRIVATE

_KIND = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Registry:
    """Where it is, and a docker `config.json` that opens it. `serve` has it give another image of the engine by its one name, `renew` a new one."""

    reference: str
    credentials: dict[str, Any]
    serve: Callable[[str], None]
    renew: Callable[[], None] = lambda: None


@contextlib.contextmanager
def registry_of(engine: Engine, image: str, *, password: str) -> Iterator[Registry]:
    """A registry on this machine that has `image`; what was pulled from it is removed."""
    access = base64.b64encode(f"kim:{password}".encode()).decode()
    with tempfile.TemporaryDirectory() as folder:
        served: list[tuple[bytes, dict[str, Path]]] = []

        def serve(image: str) -> None:
            served.append(_unpacked(engine, image, Path(folder)))

        serve(image)

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                manifest, blobs = served[-1]
                if self.headers.get("Authorization") != f"Basic {access}":
                    self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="lab"'})
                elif "/manifests/" in self.path:
                    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
                    named = {"Content-Type": _KIND, "Docker-Content-Digest": digest}
                    self._answer(200, manifest, named)
                elif blob := blobs.get(self.path.rpartition("/")[2]):
                    self._answer(200, blob.read_bytes(), {})
                else:
                    self._answer(200 if self.path == "/v2/" else 404, b"", {})

            do_HEAD = do_GET  # noqa: N815 - the name that it is called by

            def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def log_message(self, *_given: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        try:
            yield Registry(f"{host}/lab/base:3", {"auths": {host: {"auth": access}}}, serve)
        finally:
            server.shutdown()
            server.server_close()
            remove_image(engine, f"{host}/lab/base:3")


@contextlib.contextmanager
def private_registry(engine: Engine, base: str, *, password: str) -> Iterator[Registry]:
    """A registry with an image like `base` that is in no other place: nobody has it without the password."""
    name = f"nsml-test-private-{uuid.uuid4().hex[:8]}"
    api = engine.sdk.api

    def make(version: str) -> None:
        made = api.create_container(base, ["true"])["Id"]
        api.commit(made, name, version, conf={"Labels": {"test": name, "version": version}})
        api.remove_container(made)

    make("1")
    with registry_of(engine, f"{name}:1", password=password) as running:
        remove_image(engine, f"{name}:1")

        def renew() -> None:
            make("2")
            running.serve(f"{name}:2")
            remove_image(engine, f"{name}:2")

        yield replace(running, renew=renew)
    host = running.reference.partition("/")[0]
    for one in api.images(filters={"label": f"test={name}"}):
        for known in (*(one.get("RepoTags") or ()), *(one.get("RepoDigests") or ())):
            if known.startswith((f"{host}/", f"{PRIVATE}:")):
                remove_image(engine, known)


def _unpacked(engine: Engine, image: str, folder: Path) -> tuple[bytes, dict[str, Path]]:
    """The manifest of an image, and what it is of by digest."""
    with (folder / "saved.tar").open("w+b") as file:
        for piece in engine.sdk.api.get_image(image):
            file.write(piece)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            (listed,) = json.load(_file(archive, "manifest.json"))
            blobs: dict[str, Path] = {}
            config = _blob(_file(archive, listed["Config"]), folder, blobs)
            layers = [_blob(_file(archive, name), folder, blobs) for name in listed["Layers"]]
    kind = "application/vnd.docker.container.image.v1+json"
    layer = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    content = {
        "schemaVersion": 2,
        "mediaType": _KIND,
        "config": {"mediaType": kind, **config},
        "layers": [{"mediaType": layer, **one} for one in layers],
    }
    return json.dumps(content).encode(), blobs


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None
    return found


def _blob(source: IO[bytes], folder: Path, blobs: dict[str, Path]) -> dict[str, Any]:
    content = source.read()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    blobs[digest] = folder / digest
    blobs[digest].write_bytes(content)
    return {"digest": digest, "size": len(content)}
