"""A session comes to its data: two agents, and what the first session of a dataset has brought to one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.platform import ROOT
from tests.e2e.nemesis import ENDED
from tests.e2e.platforms import invitation, join_second
from tests.e2e.programs import wait_for
from tests.support.in_process import Platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1, options=["--listen", "127.0.0.1:0"]) as running:
        running.nsml("dataset", "push", "digits", str(ROOT / "examples/digits/data"))
        second = join_second(running, invitation(running))
        yield running
        running.nsml("down", "-y", "--data", str(second), timeout_s=120)


def run(platform: Platform, *options: str) -> str:
    """A session that stays, on one of the two GPUs."""
    command = ("run", "-o", "name", "--no-code", "-g", "1", *options, "--argv", "--")
    return platform.nsml(*command, "sleep", "600").stdout.strip()


def until(platform: Platform, name: str, *states: str) -> dict:
    def item() -> dict | None:
        found = next(one for one in platform.json("ps", "-a")["items"] if one["name"] == name)
        return found if found["state"] in states else None

    return wait_for(item, timeout_s=120, what=f"{name} is one of {states}")


def place(platform: Platform, name: str) -> tuple[str, bool]:
    """Where it runs, and whether for its data."""
    (replica,) = until(platform, name, "RUNNING")["replicas"]
    return replica["node"], replica["near_data"]


def stop(platform: Platform, name: str) -> None:
    platform.nsml("stop", "--kill", name)
    until(platform, name, *ENDED)


def test_the_second_session_of_a_dataset_lands_where_the_first_has_brought_it(platform):
    usual, brings = run(platform), run(platform, "-d", "digits")
    (first, _), (other, is_near) = place(platform, usual), place(platform, brings)
    assert first != other
    assert not is_near
    stop(platform, brings)
    stop(platform, usual)
    # Both are free and equal: without data it is the first again, with it the other one.
    again = run(platform)
    assert place(platform, again) == (first, False)
    stop(platform, again)
    comes = run(platform, "-d", "digits")
    assert place(platform, comes) == (other, True)
    assert f"on:  {other} near its data" in platform.nsml("status", "--explain", comes).stdout
    stop(platform, comes)
