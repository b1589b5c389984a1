"""Giving way on a real platform: save on notice, queue again, go on elsewhere, nothing lost or doubled."""

import csv
import io
import re
from platform import python_version

import pytest

from bench.platform import ROOT
from tests.e2e.platforms import invitation, join_second
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

TRAINS = """\
import json, os, pathlib, sys, time
import nsml

state = {"step": 0}


def save(path):
    pathlib.Path(path, "state.json").write_text(json.dumps(state))


def load(path):
    state.update(json.loads(pathlib.Path(path, "state.json").read_text()))


nsml.bind(save=save, load=load)
print("begins at", state["step"], "on", os.environ["NSML_DEVICES"], flush=True)
# Until it is told to give way, and so many steps once it was.
end = state["step"] + int(sys.argv[1]) if state["step"] else None
while state["step"] != end:
    step = state["step"]
    state["step"] = step + 1
    nsml.report(step=step, loss=1.0 / (step + 1))
    time.sleep(0.02)
print("ends at", state["step"])
"""

TAKES_NO_NOTICE = """\
import signal, sys, time
import nsml

nsml.bind(save=lambda path: None, load=lambda path: None)


def end(number, frame):
    print("heard SIGTERM after", round(time.monotonic() - began, 1), flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
began = time.monotonic()
print("busy", flush=True)
while True:
    time.sleep(0.1)
"""

ENDS_WHEN_TOLD = """\
import pathlib, sys, time

print("there", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("done", flush=True)
"""

STEPS_MORE = "100"
IDLES = "import time\nprint('there', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def platform():
    with Platform(simulate_gpus=2, environment={"NSML_CONTROLPLANE_NOTICE_S": "10"}) as running:
        yield running


def run(platform: Platform, folder, *options: str) -> str:
    platform.nsml("run", "-g", "1", *options, cwd=folder)
    return platform.nsml("ps", "-o", "name").stdout.split()[0]


def shown(platform: Platform, name: str) -> dict:
    found = [one for one in platform.json("ps", "-a")["items"] if one["name"] == name]
    return found[0]


def until(platform: Platform, name: str, what: str, is_so, timeout_s: float = 90.0) -> dict:
    def look():
        session = shown(platform, name)
        assert session["state"] != "FAILED", platform.nsml("logs", name, check=False).stdout
        return session if is_so(session) else None

    return wait_for(look, timeout_s=timeout_s, what=what)


def has_each_step_once(platform: Platform, name: str, log: str) -> None:
    """Both attempts together reported every step, from the first to the one that `log` ends with."""
    begun, steps = (int(log.partition(words)[2].split()[0]) for words in ("begins at", "ends at"))
    assert steps == begun + int(STEPS_MORE)
    told = platform.nsml("events", name, "loss", "-o", "csv").stdout
    reported = [int(float(row["step"])) for row in csv.DictReader(io.StringIO(told))]
    assert reported == list(range(steps))


HELD = """\
import os, pathlib, runpy, time
import nsml

report = nsml.report


def held(**values):
    # The sixth epoch of the first attempt ends once the platform has asked for the GPU.
    if values["step"] == 5 and os.environ["NSML_ATTEMPT"] == "1":
        while not pathlib.Path(os.environ["NSML_RUN_DIR"], "notice.json").exists():
            time.sleep(0.05)
    report(**values)


nsml.report = held
runpy.run_path("main.py", run_name="__main__")
"""


def programs_of(page: str) -> list[str]:
    """The programs of a document that save and load and count their steps, as they stand."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return [block for block in blocks if "nsml.bind(" in block and "nsml.steps(" in block]


@pytest.mark.parametrize(
    ("page", "epochs"), [("docs/programs.md", 20), ("docs/giving-way.md", 10_000)]
)
def test_the_program_of_a_page_does_each_step_once(
    platform: Platform, tmp_path, page: str, epochs: int
) -> None:
    (program,) = programs_of(page)
    code = write_program(tmp_path / "code", program)
    (code / "held.py").write_text(HELD)
    name = run(platform, code, "-e", "held.py")
    until(platform, name, "it says that it can be resumed", lambda s: s["resumable"])
    platform.nsml("requeue", name)
    again = until(platform, name, "it came to its end", lambda s: s["state"] == "SUCCEEDED")
    assert again["attempt"] == 2
    metric = "train/loss" if page == "docs/programs.md" else "loss"
    told = platform.nsml("events", name, metric, "-o", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(told)))
    assert [int(float(row["step"])) for row in rows] == list(range(epochs))
    losses = [float(row["value"]) for row in rows]
    assert losses == sorted(losses, reverse=True), "it went on with the weight that was saved"
    assert {row["attempt"] for row in rows} == {"1", "2"}


def device_of(session: dict) -> str:
    return session["replicas"][0]["devices"][0]["uuid"]


def test_it_goes_on_where_it_was_on_another_gpu(platform: Platform, tmp_path) -> None:
    trains = write_program(tmp_path / "trains", TRAINS)
    idles = write_program(tmp_path / "idles", IDLES)
    name = run(platform, trains, "-a", STEPS_MORE)
    other = run(platform, idles)
    waits = run(platform, idles)
    first = until(platform, name, "it says that it can be resumed", lambda s: s["resumable"])
    wait_for(
        lambda: len(platform.nsml("events", name, "loss", "-o", "csv").stdout.splitlines()) > 20,
        what="it trains",
    )
    platform.nsml("requeue", name, "--reason", "gives way to a friend")
    until(platform, waits, "who waited has what it held", lambda s: s["state"] == "RUNNING")
    queued = until(platform, name, "it is queued", lambda s: s["state"] == "QUEUED")
    assert queued["attempt"] == 1
    platform.nsml("stop", "--kill", other)
    again = until(platform, name, "it runs again", lambda s: s["attempt"] == 2 and s["replicas"])
    assert device_of(again) != device_of(first)
    until(platform, name, "it came to its end", lambda s: s["state"] == "SUCCEEDED")
    log = platform.nsml("logs", "--attempt", "1", name).stdout
    assert f"begins at 0 on {device_of(first)}" in log
    assert (
        "nsml: saved checkpoint attempt-1 on notice: requeued by root: gives way to a friend" in log
    )
    log = platform.nsml("logs", name).stdout
    assert "nsml: goes on from checkpoint attempt-1" in log
    has_each_step_once(platform, name, log)
    assert [model["name"] for model in platform.json("model", "ls", name)["items"]] == ["attempt-1"]
    platform.nsml("stop", "--kill", waits)


def test_who_takes_no_notice_gets_sigterm_after_it(platform: Platform, tmp_path) -> None:
    name = run(platform, write_program(tmp_path / "code", TAKES_NO_NOTICE))
    until(platform, name, "it says that it can be resumed", lambda s: s["resumable"])
    platform.nsml("requeue", name)
    until(platform, name, "its next attempt runs", lambda s: s["attempt"] == 2)
    log = platform.nsml("logs", "--attempt", "1", name).stdout
    waited = float(log.partition("heard SIGTERM after ")[2].split()[0])
    assert waited >= 10.0
    platform.nsml("stop", "--kill", name)


def test_what_could_not_go_on_is_left_alone_unless_forced(platform: Platform, tmp_path) -> None:
    name = run(platform, write_program(tmp_path / "code", IDLES))
    until(platform, name, "it runs", lambda s: s["state"] == "RUNNING")
    refused = platform.nsml("requeue", name, check=False)
    assert refused.returncode != 0
    assert "could not be resumed" in refused.stderr
    assert shown(platform, name)["state"] == "RUNNING"
    platform.nsml("requeue", "--force", name)
    until(platform, name, "it begins anew", lambda s: s["attempt"] == 2)
    platform.nsml("stop", "--kill", name)


@pytest.fixture(scope="module")
def narrow():
    """A platform of one GPU, whose holders give way to higher classes at once, and see our files."""
    settings = {"NSML_CONTROLPLANE_LEAST_RUN_S": "1", "NSML_CONTROLPLANE_NOTICE_S": "60"}
    options = ("--isolation", "none")
    with Platform(simulate_gpus=1, options=options, environment=settings) as running:
        yield running


@pytest.mark.every_time
def test_the_only_gpu_goes_to_a_higher_class_and_comes_back(narrow: Platform, tmp_path) -> None:
    code = write_program(tmp_path / "low", TRAINS)
    low = run(narrow, code, "-a", STEPS_MORE, "--priority", "low")
    until(narrow, low, "it says that it can be resumed", lambda s: s["resumable"])
    wait_for(
        lambda: len(narrow.nsml("events", low, "loss", "-o", "csv").stdout.splitlines()) > 20,
        what="it trains",
    )
    done = narrow.folder / "done"
    high = run(
        narrow,
        write_program(tmp_path / "high", ENDS_WHEN_TOLD),
        *("-a", str(done), "--priority", "high"),
    )
    until(narrow, high, "the higher class has the GPU", lambda s: s["state"] == "RUNNING")
    queued = until(narrow, low, "the lower one is queued", lambda s: s["state"] == "QUEUED")
    assert queued["attempt"] == 1
    log = narrow.nsml("logs", "--attempt", "1", low).stdout
    assert f"nsml: saved checkpoint attempt-1 on notice: gives way to {high} (high)" in log
    gave_way = f"it gave way to {high} (high), and resumes from its checkpoint once there is room"
    wait_for(
        lambda: gave_way in narrow.nsml("status", "--explain", low).stdout,
        what="its checkpoint is stored",
    )
    told = narrow.nsml("status", "--explain", low).stdout
    assert "place: 1 of 1 in the queue" in told
    assert f"held: 1 GPU by {high}" in told
    assert gave_way in narrow.nsml("ps", "-a").stdout
    assert gave_way in narrow.nsml("queue").stdout
    assert f"preempted: gives way to {high} (high)" in narrow.nsml("events", low, "loss").stderr
    done.touch()
    until(narrow, high, "the higher one came to its end", lambda s: s["state"] == "SUCCEEDED")
    again = until(narrow, low, "it came to its end", lambda s: s["state"] == "SUCCEEDED")
    assert again["attempt"] == 2
    [first, _] = again["attempts"]
    assert (first["cause"], first["reason"]) == ("PREEMPTED", f"gives way to {high} (high)")
    assert first["priority"] == "low"
    [device] = again["replicas"][0]["devices"]
    assert first["gpu_models"] == {device["model"]: 1.0}
    assert first["placed_at"] < first["durable_until"] <= first["ended_at"], "it saved on notice"
    held = (
        f"1 x {device['model']}, Python {python_version()}, low priority;"
        f" preempted: gives way to {high} (high); saved until "
    )
    assert held in narrow.nsml("events", low, "loss").stderr
    assert (
        f"preempted: gives way to {high} (high)" in narrow.nsml("status", "--explain", low).stdout
    )
    log = narrow.nsml("logs", low).stdout
    assert "nsml: goes on from checkpoint attempt-1" in log
    has_each_step_once(narrow, low, log)


@pytest.fixture
def wide():
    """A platform of two nodes with two GPUs each, on which a session moves as soon as that helps."""
    settings = {"NSML_CONTROLPLANE_LEAST_RUN_IN_CLASS_S": "1"}
    options = ("--listen", "127.0.0.1:0")
    with Platform(simulate_gpus=2, options=options, environment=settings) as running:
        second = join_second(running, invitation(running), gpus=2)
        wait_for(lambda: len(running.json("node", "ls")["items"]) == 2, what="two nodes")
        yield running
        running.nsml("down", "-y", "--data", str(second), timeout_s=120)


@pytest.mark.variant  # a platform of its own, for another reason to give way; who moves is decided in unit tests
def test_one_moves_so_that_a_wide_one_fits_on_a_node(wide: Platform, tmp_path) -> None:
    trains = write_program(tmp_path / "trains", TRAINS)
    idles = write_program(tmp_path / "idles", IDLES)

    def node_of(name: str, attempt: int = 1) -> str:
        there = until(
            wide, name, "it runs", lambda s: s["attempt"] == attempt and s["state"] == "RUNNING"
        )
        return there["replicas"][0]["node"]

    mover, beside, other = run(wide, trains, "-a", STEPS_MORE), run(wide, idles), run(wide, idles)
    left, went = node_of(mover), node_of(other)
    assert node_of(beside) == left != went
    wide.nsml("stop", "--kill", beside)
    until(wide, beside, "one GPU is free on each node", lambda s: s["state"] == "STOPPED")
    until(wide, mover, "it says that it can be resumed", lambda s: s["resumable"])
    wait_for(
        lambda: len(wide.nsml("events", mover, "loss", "-o", "csv").stdout.splitlines()) > 20,
        what="it trains",
    )
    wanted = run(wide, idles, "-g", "2")
    assert node_of(wanted) == left
    assert node_of(other) == went
    ended = until(wide, mover, "who moved came to its end", lambda s: s["state"] == "SUCCEEDED")
    assert (ended["attempt"], ended["replicas"][0]["node"]) == (2, went)
    [first, _] = ended["attempts"]
    moves = f"moves to make room for {wanted}"
    assert (first["cause"], first["reason"]) == ("PREEMPTED", moves)
    assert moves in wide.nsml("events", mover, "loss").stderr
    log = wide.nsml("logs", "--attempt", "1", mover).stdout
    assert f"nsml: saved checkpoint attempt-1 on notice: {moves}" in log
    log = wide.nsml("logs", mover).stdout
    assert "nsml: goes on from checkpoint attempt-1" in log
    has_each_step_once(wide, mover, log)


COUNTS = """\
import pathlib
import nsml

weight = {"n": 0}


def load(path):
    weight["n"] = int(pathlib.Path(path, "n").read_text())


nsml.bind(save=lambda path: pathlib.Path(path, "n").write_text(str(weight["n"])), load=load)
print("begins at", weight["n"], flush=True)
for step in nsml.steps(3):
    weight["n"] += 1
    nsml.save("last" if step == 2 else f"e{step}")
print("ends at", weight["n"], flush=True)
"""


def test_another_session_goes_on_from_its_checkpoints_also_once_it_is_removed(
    platform: Platform, tmp_path
) -> None:
    code = write_program(tmp_path / "code", COUNTS)
    platform.nsml("run", "-g", "0", "--wait", cwd=code)
    first = platform.nsml("ps", "-a", "-o", "name").stdout.split()[0]

    def logged(*words: str) -> tuple[str, str]:
        name = platform.nsml(*words, "-g", "0", "--wait", "-o", "name").stdout.strip()
        return name, platform.nsml("logs", name).stdout

    fork, log = logged("fork", first, "-c", "e0")
    assert "goes on from checkpoint e0" in log
    assert re.findall("(?:begins|ends) at .", log) == ["begins at 1", "ends at 3"]
    _, log = logged("resume", first)
    assert re.findall("(?:begins|ends) at .", log) == ["begins at 3", "ends at 3"]
    platform.nsml("rm", first, "-y")
    _, log = logged("rerun", fork)
    assert re.findall("(?:begins|ends) at .", log) == ["begins at 1", "ends at 3"]
    own = [one["name"] for one in platform.json("model", "ls", fork)["items"]]
    assert own == ["e0", "e1", "last"]


OF_NSML = """\
import argparse, os
import nsml

weight = {"n": 0}
def save(path):
    with open(os.path.join(path, "w"), "w") as file:
        file.write(str(weight["n"]))
def load(path):
    with open(os.path.join(path, "w")) as file:
        weight["n"] = int(file.read())
nsml.bind(save=save, load=load)
parser = argparse.ArgumentParser()
parser.add_argument("--pause", type=int, default=0)
parser.add_argument("--iteration", default="0")
config = parser.parse_args()
if config.pause:
    nsml.paused(scope=locals())
else:
    weight["n"] = 100  # initialized, as only new runs are
print("begins at", weight["n"], "of", config.iteration, flush=True)
weight["n"] += 1
nsml.save("best")
"""


def test_a_fork_of_a_program_written_for_nsml_is_one_as_there(platform: Platform, tmp_path) -> None:
    code = write_program(tmp_path / "code", OF_NSML)
    platform.nsml("run", "-g", "0", "--wait", cwd=code)
    log = platform.nsml("fork", "@last", "-c", "@last", "-g", "0", "-f").stdout
    assert "Paused.\n" in log
    assert "begins at 101 of best\n" in log
