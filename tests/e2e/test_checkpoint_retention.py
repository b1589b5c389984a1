"""nsml run --keep on a real platform: the best, the last and tagged checkpoints stay, and the session goes on from one."""

from pathlib import Path

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

TRAINS = """\
import json, os, pathlib, time
import nsml

state = {"epoch": 0}
nsml.bind(
    save=lambda path: pathlib.Path(path, "state.json").write_text(json.dumps(state)),
    load=lambda path: state.update(json.loads(pathlib.Path(path, "state.json").read_text())),
)
print("begins at", state["epoch"], flush=True)
ACCURACY = [0.1, 0.9, 0.3, 0.5, 0.2, 0.4, 0.3, 0.2]
while state["epoch"] < len(ACCURACY):
    state["epoch"] += 1
    nsml.report(step=state["epoch"], val__acc=ACCURACY[state["epoch"] - 1])
    nsml.save(state["epoch"])
    while state["epoch"] == 5 and os.environ["NSML_ATTEMPT"] == "1":
        time.sleep(0.02)
        nsml.report(step=5, val__acc=0.2)
"""
KEEP = "best:1:val/acc:max last:2"


def durable(platform: Platform, session: str) -> list[str]:
    found = platform.json("model", "ls", session)["items"]
    return [one["name"] for one in found if one["state"] == "DURABLE"]


def test_the_best_the_last_and_tagged_ones_stay_and_the_session_goes_on(
    platform: Platform, tmp_path: Path
) -> None:
    folder = write_program(tmp_path / "code", TRAINS)
    refused = platform.nsml("run", "--keep", "best:3", cwd=folder, check=False)
    assert (refused.returncode, "best names no metric" in refused.stderr) == (2, True)
    platform.nsml("run", "-g", "1", "--keep", KEEP, cwd=folder)
    session = platform.nsml("ps", "-o", "name").stdout.split()[0]
    wait_for(lambda: durable(platform, session) == ["2", "4", "5"], what="three are kept")
    told = platform.nsml("model", "ls", session).stderr
    assert "2 checkpoints" in told
    assert KEEP in told

    platform.nsml("model", "tag", session, "4", "paper")
    refused = platform.nsml("model", "rm", session, "paper", "-y", check=False)
    assert (refused.returncode, "has the tag paper" in refused.stderr) == (6, True)
    platform.nsml("requeue", "-y", session)
    wait_for(
        lambda: platform.json("ps", "-a")["items"][0]["state"] == "SUCCEEDED", what="it has ended"
    )
    assert "begins at 5" in platform.nsml("logs", session).stdout
    # What it went on from, called attempt-1, stays until it has ended.
    wait_for(lambda: durable(platform, session) == ["2", "4", "7", "8"], what="four are kept")

    pulled = platform.nsml("model", "pull", session, "paper", str(tmp_path / "models")).stdout
    assert '"epoch": 4' in Path(pulled.strip(), "state.json").read_text()
    info = platform.json("model", "info", session, "paper")
    assert (info["name"], info["tags"], info["summary"]["val/acc"]) == ("4", ["paper"], 0.5)
    assert [one["path"] for one in info["files"]] == ["state.json"]
    platform.nsml("fork", session, "-c", "paper", "-g", "1")
    info = wait_for(
        lambda: (found := platform.json("model", "info", session, "paper"))["used_by"] and found,
        what="the fork is named",
    )
    assert [one["session"] for one in info["used_by"]] == [
        platform.nsml("ps", "-a", "-o", "name").stdout.split()[0]
    ]
