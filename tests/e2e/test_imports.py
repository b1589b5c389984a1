"""Past runs of other tools on a real platform."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import Platform
from tests.support.past_runs import write_mlflow, write_tensorboard


@pytest.mark.long("a platform is started")
def test_past_runs_are_sessions_like_others(tmp_path: Path) -> None:
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
        # MLflow's files are artifacts like others.
        write_mlflow(tmp_path / "mlruns")
        run = tmp_path / "mlruns/1" / ("a" * 32)
        (run / "artifacts/net/data").mkdir(parents=True)
        (run / "artifacts/net/MLmodel").write_text("model")
        (run / "artifacts/net/data/weights.bin").write_bytes(bytes(3_000_000))
        (run / "artifacts/net/data/run.sh").write_text("#!/bin/sh\n")
        (run / "artifacts/net/data/run.sh").chmod(0o755)
        words = ("import", "mlflow", str(tmp_path / "mlruns"), "--run", "a")
        for was_there in (False, True):
            [one] = listed(*words)
            assert one["was_there"] is was_there
            [artifact] = listed("artifact", "ls", one["session"])
            assert (artifact["name"], artifact["version"]) == ("net", 1)
            assert (artifact["file_count"], artifact["size_bytes"]) == (3, 3_000_015)
        platform.nsml("artifact", "pull", one["session"], "net", str(tmp_path / "back"))
        [back] = (tmp_path / "back").glob("*/artifacts/net@1")
        files = {
            path.relative_to(back).as_posix(): path.read_bytes()
            for path in back.rglob("*")
            if path.is_file()
        }
        assert files == {
            "MLmodel": b"model",
            "data/weights.bin": bytes(3_000_000),
            "data/run.sh": b"#!/bin/sh\n",
        }
        assert (back / "data/run.sh").stat().st_mode & 0o100
