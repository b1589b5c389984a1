"""Datasets between nodes of a real platform: two that joined have what the first machine has fetched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platforms import invitation
from tests.e2e.programs import wait_for
from tests.support.in_process import Platform
from tests.support.living_folders import files_below

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
    own = {**SERVES, "NSML_AGENT_POD": "first"}
    with Platform(simulate_gpus=0, options=options, environment=own) as running:
        running.nsml("dataset", "push", "bytes", str(made(running.folder / "pushed")))
        server, token = invitation(running)
        for name in ("one", "two"):
            running.nsml(
                *("join", server, "--token", "-", "--name", name, "--simulate-gpus", "1"),
                *("--data", str(running.folder / name)),
                stdin=token,
                timeout_s=120,
                environment={**SERVES, "NSML_AGENT_POD": ""},
            )
        yield running
        for name in ("one", "two"):
            folder = running.folder / name
            running.nsml("down", "-y", "--data", str(folder), timeout_s=120)


def run(platform: Platform, *options: str, program: tuple[str, ...] = ("sleep", "600")) -> str:
    """A session with the dataset; its node, once it runs."""
    command = ("run", "-o", "name", "--no-code", *options, "--argv", "--", *program)
    name = platform.nsml(*command).stdout.strip()

    def node() -> str | None:
        found = next(one for one in platform.json("ps", "-a")["items"] if one["name"] == name)
        assert found["state"] not in {"FAILED", "HELD"}, found
        is_there = found["state"] in {"RUNNING", "SUCCEEDED"}
        return found["replicas"][0]["node"] if is_there else None

    return str(wait_for(node, timeout_s=120, what=f"{name} runs"))


def shown(platform: Platform, node: str) -> dict[str, int]:
    return dict(platform.json("node", "show", node)["dataset_bytes"])


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in files_below(folder)}


@pytest.mark.long("three nodes that start, one after the other")
def test_nodes_fetch_and_stream_from_the_first_machine(platform: Platform) -> None:
    pushed = content(platform.folder / "pushed")
    size = sum(map(len, pushed.values()))
    first = run(platform, "-g", "0", "--pod", "first", "-d", "bytes")
    wait_for(
        lambda: shown(platform, first)["from_platform"] == size, what=f"{first} says what it has"
    )
    second = run(platform, "-g", "1", "-d", "bytes")
    wait_for(
        lambda: shown(platform, second)["from_peers"] == size, what=f"{second} says what it has"
    )
    assert shown(platform, second)["from_platform"] == 0
    wait_for(lambda: shown(platform, first)["to_peers"] == size, what=f"{first} says what it gave")
    (tree,) = (platform.folder / second).glob("agent/datasets/*.manifest")
    assert content(tree.with_suffix("")) == pushed
    reads = "import nsml; print(sum(len(nsml.open(f'bytes/{n % 3}/{n}', 'rb').read()) for n in range(20)))"
    third = run(platform, "-g", "1", "--stream", "bytes", program=("python3", "-c", reads))
    assert third not in {first, second}

    def given() -> bool:
        return sum(shown(platform, one)["to_peers"] for one in (first, second)) == 2 * size

    wait_for(given, what="a stream has read all of it from peers")
    assert not list((platform.folder / third).glob("agent/datasets/*.manifest"))
