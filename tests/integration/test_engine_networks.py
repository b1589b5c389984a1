"""The engine's network of sessions, on a real engine that can keep containers apart and on one that cannot.

The engine has a network namespace of its own: its bridges and rules are none of the machine's.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import uuid
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.config import Settings
from nodeagent.engine import networks
from nodeagent.engine.client import Engine, EngineError
from nodeagent.engine.networks import OWN_NETWORK, _bridge_for, _socket_in, own_network, ways_of
from nodeagent.network import session_network
from nodeagent.network.container_networks import ContainerNetworks
from nodeagent.network.netlink import inside, new_namespace
from nodeagent.network.rules import NetworkRules
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
            # It stays where an engine turned forwarding on, and would keep containers of the next one apart.
            subprocess.run(
                [
                    "nsenter",
                    f"--net=/run/netns/{self.space}",
                    "iptables",
                    "-P",
                    "FORWARD",
                    "ACCEPT",
                ],
                check=True,
            )


METADATA = "169.254.169.254"


@contextmanager
def container(engine: Engine, network: str) -> Iterator[int]:
    """The first process of a container that waits."""
    api = engine.sdk.api
    made = api.create_container(
        IMAGE,
        entrypoint=["/bin/sh", "-c", "read x"],
        stdin_open=True,
        host_config=api.create_host_config(network_mode=network),
    )["Id"]
    try:
        api.start(made)
        yield int(api.inspect_container(made)["State"]["Pid"])
    finally:
        api.remove_container(made, force=True)


def reaches(pid: int, port: int) -> bool:
    """Whether a program in the network of a process reaches the metadata service."""
    with _socket_in(pid) as end:
        end.settimeout(2)
        return end.connect_ex((METADATA, port)) == 0


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


def test_agents_that_try_the_network_at_once_come_to_one_result(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to know that an engine keeps nothing apart removes the network, which the other tries still."""
    tried, removed = networks._tried, []

    def late(engine: Engine, image: str, name: str) -> str:
        if not removed:
            removed.append(engine.sdk.api.remove_network(OWN_NETWORK))
        return tried(engine, image, name)

    monkeypatch.setattr(networks, "_tried", late)
    with place.engine("--iptables=false") as engine:
        engine.sdk.api.import_image_from_data(shell_image(), repository="shell", tag="1")
        why = own_network(engine, IMAGE, tmp_path / "known", "trial")
        assert "cannot keep containers apart" in why
        assert OWN_NETWORK not in engine.facts().networks


def test_metadata_services_are_closed_to_containers_whatever_becomes_of_their_network(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None:
        absent("no program nft (package nftables)")
    monkeypatch.setattr(session_network, "_STATE", tmp_path / "networks")
    run = partial(subprocess.run, check=True)
    run(["ip", "-n", place.space, "address", "add", METADATA, "dev", "lo"])
    run(["ip", "-n", place.space, "link", "set", "lo", "up"])
    here = os.open(f"/run/netns/{place.space}", os.O_RDONLY | os.O_CLOEXEC)
    listener = inside(here, lambda: socket.create_server((METADATA, 0)))
    port = listener.getsockname()[1]
    (tmp_path / "agent").mkdir()
    settings = Settings(
        node="n", server="unix:/x", data=tmp_path / "agent", gang_network="overlay:gangs"
    )
    try:
        with place.engine() as engine:
            engine.sdk.api.import_image_from_data(shell_image(), repository="shell", tag="1")
            assert own_network(engine, IMAGE, tmp_path / "known", "trial") == ""
            containers = ContainerNetworks(engine, settings, OWN_NETWORK)
            with container(engine, OWN_NETWORK) as pid:
                assert reaches(pid, port)
                facts = inside(
                    here,
                    lambda: session_network.probe_network(
                        settings.data,
                        rules=NetworkRules(metadata=settings.metadata_addresses),
                        subnet="198.18.0.0/15",
                        nameservers=(),
                        is_wanted=False,
                        engines=containers.bridges,
                    ),
                )
                assert not reaches(pid, port)
            assert facts.firewall is not None
            api = engine.sdk.api
            for made in ("by an agent", "by hand", "beside a bridge of that name"):
                api.remove_network(OWN_NETWORK)
                if made == "by hand":
                    api.create_network(OWN_NETWORK, driver="bridge")
                else:
                    if made != "by an agent":
                        bridge = _bridge_for(engine)
                        run(["ip", "-n", place.space, "link", "add", bridge, "type", "bridge"])
                        run(
                            [
                                "ip",
                                "-n",
                                place.space,
                                "address",
                                "add",
                                "10.9.9.1/24",
                                "dev",
                                bridge,
                            ]
                        )
                    assert own_network(engine, "", tmp_path / "known", "trial") == ""
                if made != "by an agent":
                    inside(here, facts.firewall.restore)
                with container(engine, OWN_NETWORK) as pid:
                    assert not reaches(pid, port), made
            # an engine whose networks are not this namespace's, which has no bridges at all
            elsewhere = new_namespace(lambda _: None)
            try:
                names = [OWN_NETWORK, "none", "host", "not-there"]
                ways = inside(elsewhere, lambda: ways_of(engine, names))
            finally:
                os.close(elsewhere)
            assert (ways.bridges, ways.others) == ((), (OWN_NETWORK,))
            api.remove_network(OWN_NETWORK)
            inside(here, facts.remove)
    finally:
        listener.close()
        os.close(here)
