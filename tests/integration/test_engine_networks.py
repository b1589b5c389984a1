"""The engine's network of sessions, on a real engine that can keep containers apart and on one that cannot.

The engine has a network namespace of its own: its bridges and rules are none of the machine's.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.engine.client import Engine, EngineError
from nodeagent.engine.networks import OWN_NETWORK, own_network
from nodeagent.runtimes.containment import probe_containers
from nodeagent.runtimes.launch import this_machine
from tests.engines import absent, remove_with_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "shell:1"


class Place:
    """A data folder and a namespace, in which engines run one after another."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nsml-engine-"))
        self.space = f"nsml-{uuid.uuid4().hex[:8]}"
        subprocess.run(["ip", "netns", "add", self.space], check=True)

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.space], check=True)
        remove_with_mounts(self.folder)

    @contextmanager
    def engine(self, *flags: str) -> Iterator[Engine]:
        path = self.folder / "docker.sock"
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", "dockerd",
                 "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "run"),
                 "--pidfile", str(self.folder / "pid"), "-H", f"unix://{path}", "--bridge", "none",
                 *flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            engine = Engine(path)
            deadline = time.monotonic() + 60
            while not answers(engine):
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-1000:]
                time.sleep(0.05)
            yield engine
        finally:
            process.terminate()
            process.wait(60)


def answers(engine: Engine) -> bool:
    try:
        return bool(engine.facts().version)
    except EngineError:
        return False


def shell_image() -> bytes:
    """A root with this machine's shell and what it loads, as an archive."""
    shell = os.path.realpath("/bin/sh")
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=False).stdout
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(shell, "bin/sh")
        for library in re.findall(r"(/\S+) \(0x", listed):
            archive.add(os.path.realpath(library), library.lstrip("/"))
    return content.getvalue()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    missing = [name for name in ("dockerd", "ip", "nsenter", "iptables") if not shutil.which(name)]
    if os.geteuid() or missing:
        absent(f"an engine with bridges needs root, and here is no {missing}")
    made = Place()
    try:
        yield made
    finally:
        made.remove()


def test_containers_are_kept_apart_where_the_engine_can(place: Place, tmp_path: Path) -> None:
    known = tmp_path / "known"
    with place.engine() as engine:
        engine.sdk.api.import_image_from_data(shell_image(), repository="shell", tag="1")
        assert own_network(engine, IMAGE, known, "trial") == ""
        assert engine.sdk.api.containers(all=True) == []
        machine = this_machine(with_pid=True)
        found = probe_containers(
            engine,
            machine,
            tmp_path / "trial",
            node="n",
            mark="m",
            default_image=IMAGE,
            most_open_files=machine.open_files,
        )
        assert (found.container.network, found.own_network) == (OWN_NETWORK, OWN_NETWORK)
        assert engine.sdk.api.containers(all=True) == []
        engine.sdk.api.remove_network(OWN_NETWORK)
        engine.sdk.api.create_network(OWN_NETWORK)
        with pytest.raises(EngineError, match="lets containers reach one another"):
            own_network(engine, IMAGE, known, "trial")
        engine.sdk.api.remove_network(OWN_NETWORK)
    with place.engine("--iptables=false") as engine:
        why = own_network(engine, IMAGE, known, "trial")
        assert "cannot keep containers apart" in why, "its option alone does nothing"
        assert OWN_NETWORK not in engine.facts().networks
        assert own_network(engine, IMAGE, known, "trial") == why
