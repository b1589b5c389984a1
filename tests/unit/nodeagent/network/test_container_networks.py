"""By which interfaces an engine's containers leave the machine."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker.errors
import pytest

from nodeagent.engine.client import Engine
from nodeagent.engine.networks import Ways, ways_of

NAME = "com.docker.network.bridge.name"
NETWORKS: dict[str, dict[str, Any]] = {
    "bridge": {"Driver": "bridge", "Id": "1" * 64, "Options": {NAME: "docker0"}},
    "nsml": {"Driver": "bridge", "Id": "2" * 64, "Options": {NAME: "br-nsml-000000"}},
    "older": {"Driver": "bridge", "Id": "3" * 64, "Options": None},
    "elsewhere": {"Driver": "bridge", "Id": "4" * 64, "Options": {}},
    "gangs": {"Driver": "overlay", "Id": "5" * 64, "Options": {}},
    "docker_gwbridge": {"Driver": "bridge", "Id": "6" * 64, "Options": {NAME: "docker_gwbridge"}},
    "lan": {"Driver": "macvlan", "Id": "7" * 64, "Options": {"parent": "eth0"}},
    "host": {"Driver": "host", "Id": "8" * 64, "Options": {}},
    "none": {"Driver": "null", "Id": "9" * 64, "Options": {}},
}


def inspected(name: str) -> dict[str, Any]:
    if name not in NETWORKS:
        raise docker.errors.NotFound(f"network {name} not found")
    return NETWORKS[name]


@pytest.mark.parametrize(
    ("networks", "ways"),
    [
        (["nsml", "bridge"], Ways(bridges=("br-nsml-000000", "docker0"))),
        (["older"], Ways(bridges=("br-333333333333",))),
        (["gangs", "none"], Ways(bridges=("docker_gwbridge",))),
        (["elsewhere", "lan"], Ways(others=("elsewhere", "lan"))),
        (["host", "none", "not-there"], Ways()),
    ],
)
def test_ways_of_networks(monkeypatch: pytest.MonkeyPatch, networks: list[str], ways: Ways) -> None:
    here = ["lo", "docker0", "br-nsml-000000", "br-333333333333", "docker_gwbridge"]
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(here, start=1)))
    api = SimpleNamespace(inspect_network=inspected)
    engine = SimpleNamespace(sdk=SimpleNamespace(api=api), socket=Path("/nowhere"))
    assert ways_of(cast("Engine", engine), networks) == ways
