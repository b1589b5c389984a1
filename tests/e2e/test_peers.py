"""Datasets between nodes of a real platform: two that joined, the second of which has what the first has fetched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platforms import invitation
from tests.e2e.programs import wait_for
from tests.support.in_process import Platform

SERVES = {"NSML_AGENT_LISTEN_PEERS": "127.0.0.1:0", "NSML_AGENT_HOST": "127.0.0.1"}


def made(folder: Path) -> Path:
    """A dataset that is large enough to be fetched from other nodes."""
    rng = random.Random(1)
    for number in range(20):
        (folder / f"{number % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"{number % 3}/{number}").write_bytes(rng.randbytes(number * 30_000))
    return folder


@pytest.fixture
def platform() -> Iterator[Platform]:
    options = ["--listen", "127.0.0.1:0"]
    with Platform(simulate_gpus=0, options=options, environment=SERVES) as running:
        running.nsml("dataset", "push", "bytes", str(made(running.folder / "pushed")))
        server, token = invitation(running)
        for name in ("one", "two"):
            running.nsml(
                *("join", server, "--token", "-", "--name", name, "--simulate-gpus", "1"),
                *("--data", str(running.folder / name)),
                stdin=token,
                timeout_s=120,
                environment=SERVES,
            )
        yield running
        for name in ("one", "two"):
            folder = running.folder / name
            running.nsml("down", "-y", "--data", str(folder), timeout_s=120)


def run(platform: Platform) -> str:
    """A session with the dataset on one of the two GPUs; its node, once it runs."""
    command = ("run", "-o", "name", "--no-code", "-g", "1", "-d", "bytes", "--argv", "--")
    name = platform.nsml(*command, "sleep", "600").stdout.strip()

    def node() -> str | None:
        found = next(one for one in platform.json("ps", "-a")["items"] if one["name"] == name)
        assert found["state"] not in {"FAILED", "HELD"}, found
        return found["replicas"][0]["node"] if found["state"] == "RUNNING" else None

    return str(wait_for(node, timeout_s=120, what=f"{name} runs"))


def shown(platform: Platform, node: str) -> dict[str, int]:
    return dict(platform.json("node", "show", node)["dataset_bytes"])


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_second_node_fetches_a_dataset_from_the_first(platform: Platform) -> None:
    pushed = content(platform.folder / "pushed")
    size = sum(map(len, pushed.values()))
    first = run(platform)
    wait_for(
        lambda: shown(platform, first)["from_platform"] == size, what=f"{first} says what it has"
    )
    second = run(platform)
    assert first != second
    wait_for(
        lambda: shown(platform, second)["from_peers"] == size, what=f"{second} says what it has"
    )
    assert shown(platform, second)["from_platform"] == 0
    wait_for(lambda: shown(platform, first)["to_peers"] == size, what=f"{first} says what it gave")
    (tree,) = (platform.folder / second).glob("agent/datasets/*.manifest")
    assert content(tree.with_suffix("")) == pushed
    # the first machine has no certificate, and says so
    own = next(
        one for one in platform.json("node", "ls")["items"] if one["name"] not in {first, second}
    )
    assert "listen_peers: only a node with a certificate" in str(own)
