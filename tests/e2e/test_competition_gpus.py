"""A competition's limit of GPUs per team on a real platform: who waits and why, another limit, and a killed leader."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

FILE = """\
title = "Reviews"
gpus = {gpus}

[[phase]]
name = "one"
starts = {starts}
ends = {ends}
dataset = "reviews"
"""
WHY = "team lions holds 1 of 1 GPU of competition cup"


@pytest.mark.long("a platform, three sessions, and a kill of the control plane")
def test_a_team_holds_no_more_gpus_than_its_competition_says(tmp_path: Path) -> None:
    with Platform(simulate_gpus=3) as platform:
        lee = user_of(platform, "lee", tmp_path)
        data = tmp_path / "reviews"
        (data / "test").mkdir(parents=True)
        (data / "test/test_data").write_text("1\n")
        (data / "test/test_label").write_text("1\n")
        (data / "data_loader.py").write_text("def test_data_loader(root_path):\n    return [1]\n")
        (tmp_path / "evaluation.py").write_text("print(1.0)\n")
        evaluation = str(tmp_path / "evaluation.py")
        platform.nsml("dataset", "push", "-l", "-e", evaluation, "reviews", str(data))
        platform.nsml("dataset", "share", "-y", "reviews", "--public")
        owner = platform.json("dataset", "info", "reviews")["owner"]
        file = tmp_path / "cup.toml"
        starts = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)

        def write(gpus: int) -> None:
            ends = starts + timedelta(days=1)
            text = FILE.format(gpus=gpus, starts=starts.isoformat(), ends=ends.isoformat())
            file.write_text(text)

        write(1)
        platform.nsml("competition", "create", "cup", str(file))
        platform.nsml("competition", "open", "cup")
        platform.nsml("competition", "join", f"{owner}/cup", "--team", "lions", environment=lee)
        shown = platform.nsml("competition", "show", f"{owner}/cup", environment=lee).stdout
        assert "1 for a team at a time" in shown

        code = write_program(tmp_path / "code", "import time\ntime.sleep(600)\n")

        def run(gpus: str, *more: str, check: bool = True) -> Any:
            words = ("run", "-g", gpus, "-o", "name", "-d", f"{owner}/reviews", *more)
            return platform.nsml(*words, cwd=code, environment=lee, check=check)

        def sessions() -> dict[str, dict[str, Any]]:
            listed = json.loads(platform.nsml("ps", "-j", environment=lee).stdout)["items"]
            return {one["name"]: one for one in listed}

        refused = run("2", check=False)
        assert refused.returncode == 7
        assert "a team of competition cup may hold 1 GPU at once" in refused.stderr
        assert "nsml run -g 1 ..." in refused.stderr
        first, second = run("1").stdout.strip(), run("1").stdout.strip()
        wait_for(lambda: sessions()[first]["state"] == "RUNNING", what="the first runs")

        def waits() -> bool:
            queued = platform.nsml("queue", environment=lee, check=False).stdout
            return WHY in queued and sessions()[second]["state"] == "QUEUED"

        wait_for(waits, what="the second waits for the team's GPU")
        told = platform.nsml("status", "--explain", second, environment=lee).stdout
        assert f"why: {WHY}; {first} holds 1 of them" in told
        assert f"held: 1 GPU by {first}" in told

        platform.kill("controlplane")
        platform.up()
        wait_for(waits, what="the second waits after a kill, too")
        assert sessions()[first]["state"] == "RUNNING"

        write(2)
        platform.nsml("competition", "update", "cup", str(file))
        wait_for(lambda: sessions()[second]["state"] == "RUNNING", what="the second runs")
