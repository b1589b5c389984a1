"""Azurite, the emulator of Azure Blob Storage, for tests: skipped where there is none, a failure where it is required."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest

from cli.local.ports import Held
from tests.support.relays import Answer, Asked, ask

ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Of every Azurite, as its manual has it."""
_VERSION: Final = "2021-08-06"
_HERE: Final = Path(__file__).parents[2] / ".venv/azurite/node_modules/.bin/azurite-blob"
PATIENCE_S: Final = 60.0


def require_azurite() -> str:
    """The program; NSML_REQUIRE_AZURITE=1 makes a missing one a failure."""
    found = str(_HERE) if _HERE.exists() else shutil.which("azurite-blob")
    if found is None:
        reason = "no azurite-blob: make azurite (needs npm)"
        if os.environ.get("NSML_REQUIRE_AZURITE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass
class AzureServer:
    """A server with one account; each test takes a container of its own."""

    process: subprocess.Popen[bytes]
    server: str
    folder: Path
    _port: int
    _ports: Held
    _containers: int = 0

    @property
    def endpoint(self) -> str:
        """The URL of the account."""
        return f"{self.server}/{ACCOUNT}"

    def container(self) -> str:
        """The name of a new container."""
        self._containers += 1
        name = f"container-{self._containers}"
        answer = self._ask("PUT", name, "restype=container")
        assert answer.status == 201, answer
        return name

    def keys(self, container: str) -> list[str]:
        """The names of all blobs in a container."""
        answer = self._ask("GET", container, "comp=list&restype=container")
        return [str(one.text) for one in ET.fromstring(answer.body).iterfind(".//Blob/Name")]

    def empty(self, container: str) -> None:
        """Remove all blobs of a container."""
        for key in self.keys(container):
            assert self._ask("DELETE", f"{container}/{key}").status == 202

    def shared_access(self, container: str, *, until_s: float, permissions: str = "racwdl") -> str:
        """A shared access signature for a container, until a time (Unix s)."""
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s))
        fields = [permissions, "", end, f"/blob/{ACCOUNT}/{container}", "", "", "http,https"]
        fields += [_VERSION, "c", "", "", "", "", "", "", ""]
        signature = _signed("\n".join(fields))
        return (
            f"sv={_VERSION}&sr=c&sp={permissions}&se={quote(end)}&spr=http,https"
            f"&sig={quote(signature, safe='')}"
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """Where its account and key are found."""
        return {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY}

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Start it at its old place, with what it kept."""
        self.process = _start(self.folder, self._port)
        _await(self)

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.kill()
        self._ports.close()

    def _ask(self, method: str, path: str, query: str = "") -> Answer:
        date = formatdate(usegmt=True)
        told = "".join(f"\n{part.replace('=', ':')}" for part in query.split("&") if part)
        text = (
            f"{method}{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{path}{told}"
        )
        headers = {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "authorization": f"SharedKey {ACCOUNT}:{_signed(text)}",
            "content-length": "0",
        }
        target = f"/{ACCOUNT}/{path}" + (f"?{query}" if query else "")
        return ask(self.server, Asked(method=method, target=target, headers=headers))


def _signed(text: str) -> str:
    key = base64.b64decode(KEY)
    return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()


def start_azure(folder: Path) -> AzureServer:
    """Start a server on a free port, with its data in the folder, and wait until it answers."""
    ports = Held()
    port = ports.free()
    server = f"http://127.0.0.1:{port}"
    started = AzureServer(_start(folder, port), server, folder, port, ports)
    _await(started)
    return started


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    words = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    return subprocess.Popen(
        [require_azurite(), *words, "--silent", "--disableTelemetry", "--skipApiVersionCheck"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _await(server: AzureServer) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at and server.process.poll() is None:
        try:
            ask(server.server, Asked(method="GET", target="/", headers={}))
        except OSError:
            time.sleep(0.05)
        else:
            return
    server.end()
    raise AssertionError("Azurite does not start")


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """One server for the whole run: take a container of your own, and leave it running."""
    server = start_azure(tmp_path_factory.mktemp("azure"))
    yield server
    server.end()
