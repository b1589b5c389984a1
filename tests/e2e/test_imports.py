"""Past runs of other tools on a real platform."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import Platform
from tests.support.past_runs import write_tensorboard


@pytest.mark.long("a platform is started")
def test_runs_of_tensorboard_are_sessions_like_others(tmp_path: Path) -> None:
    write_tensorboard(tmp_path / "runs")
    with Platform(simulate_gpus=1) as platform:

        def listed(*words: str) -> Any:
            return json.loads(platform.nsml(*words, "-j").stdout)["items"]

        words = ("import", "tensorboard", str(tmp_path / "runs"), "-d", "digits")
        first = listed(*words)
        assert [(one["run"], one["imported"]) for one in first] == [("a", True), ("b", True)]
        names = [one["session"] for one in first]
        assert [name.partition("/")[2] for name in names] == ["digits/1", "digits/2"]
        found = listed("ps", "-a", "origin:imported")
        assert [one["name"] for one in found] == names[::-1]
        assert [one["state"] for one in found] == ["SUCCEEDED", "SUCCEEDED"]
        assert found[0]["created_at"].startswith("2023-11-14T23:13:20")
        assert found[0]["ended_at"].startswith("2023-11-14T23:13:22")
        assert found[0]["imported"]["platform"] == "tensorboard"
        assert (
            "imported from tensorboard/digits/a"
            in platform.nsml("status", "--explain", names[0]).stdout
        )
        points = listed("events", names[0])
        assert [(one["step"], one["value"], one["origin"]) for one in points] == [
            (0, 1.0, "tensorboard"),
            (1, 0.5, "tensorboard"),
            (2, pytest.approx(1 / 3), "tensorboard"),
        ]
        assert "loss" in platform.nsml("plot", names[0], "-m", "loss").stdout
        assert "loss=0.3333" in platform.nsml("diff", *names).stderr
        again = listed(*words)
        assert [one["was_there"] for one in again] == [True, True]
        assert [one["session"] for one in again] == names
        assert len(listed("ps", "-a")) == 2
        # A removed one can be imported again.
        platform.nsml("rm", "-y", names[1])
        assert [one["was_there"] for one in listed(*words)] == [True, False]
        archive = str(tmp_path / "session.tar.zst")
        platform.nsml("backup", names[0], "-o", archive)
        assert "whole, 1 session" in platform.nsml("restore", "--check", archive).stdout
