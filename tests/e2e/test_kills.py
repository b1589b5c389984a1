"""kill -9 of the agent and of the control plane in the middle: nothing is lost, nothing doubled."""

import csv
import io
import random
from pathlib import Path

import pytest

from tests.e2e.programs import WITNESS, wait_for, write_program
from tests.support.in_process import Platform

STEPS = 400
PAUSE_S = 0.02


@pytest.fixture(params=["etcd", pytest.param("embedded", marks=pytest.mark.variant)])
def platform(request):
    options = ["--embedded"] if request.param == "embedded" else []
    with Platform(simulate_gpus=2, options=options) as running:
        yield running


def replica_folder(platform: Platform, name: str):
    session_id = platform.nsml("getid", name).stdout.strip()
    return platform.folder / "data/agent/replicas" / f"{session_id}.1.0"


def test_reports_and_bytes_arrive_once_and_in_order(platform, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    write_program(tmp_path / "code", WITNESS)
    platform.nsml(*("run", "-g", "1", "-a", f"{STEPS} {PAUSE_S}"), cwd=tmp_path / "code")
    name = platform.nsml("ps", "-o", "name").stdout.split()[0]
    folder = replica_folder(platform, name)
    witness = folder / "app/witness"

    def steps_done() -> int:
        return witness.read_text().count("report") if witness.exists() else 0

    at = sorted(rng.sample(range(STEPS // 10, STEPS * 9 // 10), 4))
    for step, program in zip(at, ("agent", "controlplane", "agent", "controlplane"), strict=True):
        wait_for(lambda step=step: steps_done() >= step, what=f"step {step}")
        platform.kill(program)
        platform.up()

    wait_for(lambda: witness.read_text().endswith("done\n"), what="training went on to its end")
    truth = witness.read_text().splitlines()
    (folder / "app/finish").touch()

    def ended() -> bool:
        state = platform.json("ps", "-a")["items"][0]["state"]
        assert state != "FAILED", platform.nsml("ps", "-a").stdout
        return state == "SUCCEEDED"

    wait_for(ended, what="the session ended well")
    printed = [line.removeprefix("print ") for line in truth if line.startswith("print ")]
    assert platform.nsml("logs", name).stdout == "".join(line + "\n" for line in printed)
    events = csv.DictReader(io.StringIO(platform.nsml("events", name, "loss", "-o", "csv").stdout))
    reported = [int(line.split()[1]) for line in truth if line.startswith("report ")]
    assert [int(float(row["step"])) for row in events] == reported == list(range(STEPS))
    shown = platform.json("media", name)["items"]
    told = [int(line.split()[1]) for line in truth if line.startswith("text ")]
    assert [(one["step"], one["state"]) for one in shown] == [(step, "DURABLE") for step in told]
    paths = platform.nsml("media", name, "--export", str(tmp_path / "shown")).stdout.split()
    assert [Path(path).read_text() for path in paths] == [f"step {step}" for step in told]
    models = platform.json("model", "ls", name)["items"]
    assert [model["name"] for model in models] == [str(STEPS // 2)]
