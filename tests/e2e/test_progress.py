"""How far a training is, from a loop of `nsml.steps` to `nsml ps` and the details of a session, on a real platform."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.programs import wait_for, write_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.in_process import Platform

PROGRAM = """\
import time
import nsml

for step in nsml.steps(100_000):
    time.sleep(0.05)
"""


@pytest.mark.long("a platform is started, and watched until the end of a program is estimated")
def test_progress_is_seen_live_and_stays_after_the_end(platform: Platform, tmp_path: Path) -> None:
    platform.nsml("run", "-g", "0", cwd=write_program(tmp_path / "trains", PROGRAM))
    [name] = platform.nsml("ps", "-o", "name").stdout.split()

    def session() -> dict[str, Any]:
        listed = json.loads(platform.nsml("ps", "-a", "-o", "json").stdout)["items"]
        [found] = [one for one in listed if one["name"] == name]
        return dict(found)

    def live() -> dict[str, Any] | None:
        found = session()
        progress = found["progress"]
        is_live = found["state"] == "RUNNING" and progress and progress["done"] >= 20
        return found if is_live and progress["ends_at"] else None

    found = wait_for(live, what="its progress with an estimated end")
    progress = found["progress"]
    assert (progress["of"], progress["unit"], progress["origin"]) == (100_000, "steps", "nsml")
    assert found["created_at"] < progress["reported_at"] < progress["ends_at"]
    assert wait_for(lambda: session()["progress"]["done"] > progress["done"], what="more progress")
    listed = platform.nsml("ps").stdout
    assert "Progress" in listed
    assert " left" in listed
    shown = platform.nsml("status", "--explain", name).stdout
    assert "  progress: step " in shown
    assert " left" in shown
    platform.nsml("stop", "-y", name)
    ended = wait_for(
        lambda: one if (one := session())["state"] == "STOPPED" else None, what="its end"
    )
    last = ended["progress"]
    assert progress["done"] < last["done"] < 100_000
    assert last["ends_at"] is None
    assert last["attempt"] == 1
    assert (
        f"  progress: step {last['done']}/100000\n"
        in platform.nsml("status", "--explain", name).stdout
    )
