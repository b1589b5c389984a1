"""Single faults, one after the other, under a program that reports what it did itself."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.e2e.nemesis import (
    ENDED,
    PROGRAM,
    SOAKING,
    Faults,
    Witnesses,
    check_nothing_left,
    check_streams,
    listed,
)
from tests.e2e.platforms import contained_platform, nothing_is_left_in_engine, taken
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.said import last_line

ENDLESS = "-1 0.01 0"


class Shared:
    """A platform that one test after the other breaks and heals; after a failure the next has a new one."""

    def __init__(self, make: Callable[[], Platform]) -> None:
        self._make = make
        self._running: Platform | None = None

    def get(self) -> Platform:
        if self._running is None:
            self._running = self._make().__enter__()
        return self._running

    def end(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


@pytest.fixture(
    scope="module", params=["processes", pytest.param("containers", marks=pytest.mark.variant)]
)
def shared(request):
    make = {"processes": lambda: Platform(simulate_gpus=2), "containers": contained_platform}
    platforms = Shared(make[request.param])
    yield platforms
    platforms.end()


@pytest.fixture
def platform(shared, request):
    """What no failure has touched: each test ends its sessions and lets everything run."""
    failed = request.session.testsfailed
    running = shared.get()
    yield running
    if request.session.testsfailed > failed:
        shared.end()
    elif request.node.callspec.params["shared"] == "containers":
        nothing_is_left_in_engine(running)


@pytest.fixture
def witnesses(platform):
    watching = Witnesses(platform, [platform.folder / "data"])
    yield watching
    watching.close()


class Submitted:
    """A session that has begun to report."""

    def __init__(self, platform, witnesses, *options: str, args: str = ENDLESS):
        self._platform, self._witnesses = platform, witnesses
        code = write_program(platform.folder / "code", PROGRAM)
        done = platform.nsml("run", "-o", "name", *options, "-a", args, cwd=code)
        self.name = done.stdout.strip()
        self.id = platform.nsml("getid", self.name).stdout.strip()
        wait_for(lambda: self.lines > 20, what=f"{self.name} reports")

    @property
    def lines(self) -> int:
        return sum(map(len, self._witnesses.of(self.id).values()))

    @property
    def item(self) -> dict:
        return listed(self._platform)[self.name]

    @property
    def shim(self) -> dict:
        replicas = self._platform.folder / "data/agent/replicas"
        return json.loads((replicas / f"{self.id}.1.0/shim.json").read_text())

    def gets_on(self) -> None:
        before = self.lines
        wait_for(lambda: self.lines > before + 20, what=f"{self.name} gets on")

    def reaches(self, *states: str) -> dict:
        return wait_for(
            lambda: (item := self.item)["state"] in states and item, what=f"{self.name} {states}"
        )

    def stop(self) -> None:
        done = taken(self._platform, "stop", self.name, "-y")
        assert done.returncode == 0, done.stderr

    def is_whole(self) -> None:
        wrong = list(check_streams(self._platform, self._witnesses, self.name, self.id))
        assert not wrong, "\n".join(wrong)


def nothing_is_left(platform, witnesses) -> None:
    wrong = list(check_nothing_left(platform, witnesses))
    assert not wrong, "\n".join(wrong)


def test_a_killed_shim_ends_its_session_with_a_cause(platform, witnesses):
    session = Submitted(platform, witnesses)
    os.kill(session.shim["pid"], signal.SIGKILL)
    item = session.reaches(*ENDED)
    assert (item["state"], item["end"]["cause"]) == ("FAILED", "NODE_LOST")
    session.is_whole()
    nothing_is_left(platform, witnesses)


def test_a_shim_that_is_killed_while_no_agent_looks(platform, witnesses):
    session = Submitted(platform, witnesses)
    platform.kill("agent")
    os.kill(session.shim["pid"], signal.SIGKILL)
    platform.up()
    assert session.reaches(*ENDED)["end"]["cause"] == "NODE_LOST"
    session.is_whole()
    nothing_is_left(platform, witnesses)


def test_a_killed_zygote_is_replaced_and_its_sessions_run_on(platform, witnesses):
    running = Submitted(platform, witnesses)
    agent = platform.pid("agent")
    children = Path(f"/proc/{agent}/task").glob("*/children")
    zygotes = [int(pid) for file in children for pid in file.read_text().split()]
    assert zygotes
    for pid in zygotes:
        os.kill(pid, signal.SIGKILL)
    later = Submitted(platform, witnesses, args="40 0 3")
    assert later.reaches(*ENDED)["end"]["exit_code"] == 3
    running.gets_on()
    running.stop()
    assert running.reaches(*ENDED)["state"] == "STOPPED"
    for session in (running, later):
        session.is_whole()
    nothing_is_left(platform, witnesses)


def test_a_machine_that_booted_anew_loses_its_sessions_and_repeats_those_that_may(
    platform, witnesses
):
    booted = platform.folder / "boot_id"
    booted.write_text("11111111-2222-3333-4444-555555555555\n")
    mount = f"mount --bind {booted} /proc/sys/kernel/random/boot_id"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    lost = Submitted(platform, witnesses)
    repeated = Submitted(platform, witnesses, "--retry", "1", args="-1 0.01 0 200")
    platform.kill("agent")
    for session in (lost, repeated):
        os.kill(session.shim["pid"], signal.SIGKILL)
    up = f"{mount} && exec {PROGRAMS / 'nsml'} up"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", up],
        env=platform.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"nsml up: {last_line(done.stderr)}"
    assert lost.reaches(*ENDED)["end"]["cause"] == "NODE_LOST"
    item = repeated.reaches(*ENDED)
    assert (item["state"], item["attempt"]) == ("SUCCEEDED", 2)
    for session in (lost, repeated):
        session.is_whole()
    nothing_is_left(platform, witnesses)
    platform.nsml("down")  # it comes back in the boot that everybody else is in
    platform.up()


def test_a_paused_agent_makes_its_sessions_unknown_and_takes_them_back(platform, witnesses):
    session = Submitted(platform, witnesses)
    agent = platform.pid("agent")
    os.kill(agent, signal.SIGSTOP)
    try:
        session.reaches("UNKNOWN")
        code = platform.folder / "code"
        other = platform.nsml("run", "-o", "name", "-g", "2", "-a", "3 0 0", cwd=code)
        session.gets_on()
        held = [device["sessions"] for device in platform.json("gpustat")["items"]]
        assert sorted(held) == [[], [session.name]]
        assert listed(platform)[other.stdout.strip()]["state"] == "QUEUED"
    finally:
        os.kill(agent, signal.SIGCONT)
    assert session.reaches("RUNNING")["attempt"] == 1
    session.stop()
    session.reaches("STOPPED")
    wait_for(
        lambda: listed(platform)[other.stdout.strip()]["state"] == "SUCCEEDED",
        what="the one that waited",
    )
    session.is_whole()
    nothing_is_left(platform, witnesses)


@pytest.mark.every_time
def test_training_goes_on_without_a_control_plane_and_through_a_restart(platform, witnesses):
    session = Submitted(platform, witnesses)
    platform.kill("controlplane")
    for _ in range(10):
        session.gets_on()
    platform.up()
    platform.nsml("down", "--keep-sessions")
    session.gets_on()
    platform.up()
    assert session.reaches("RUNNING")["attempt"] == 1
    session.stop()
    session.reaches("STOPPED")
    session.is_whole()
    nothing_is_left(platform, witnesses)


def test_a_store_that_stands_still_disturbs_no_session(platform, witnesses):
    session = Submitted(platform, witnesses)
    faults = Faults(platform, None, None)
    if "etcd" not in faults.pids():
        pytest.skip("no etcd")
    faults.hit("etcd", signal.SIGSTOP)
    refused = platform.nsml(
        "run", "-g", "0", "--patience", "0s", "--no-code", "--argv", "--", "true", check=False
    )
    assert refused.returncode == 3, refused.stderr
    session.gets_on()
    faults.hit("etcd", signal.SIGCONT)
    assert session.reaches("RUNNING")["attempt"] == 1
    session.stop()
    session.reaches("STOPPED")
    session.is_whole()


@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=SOAKING)])
def test_a_follower_prints_each_byte_once(platform, witnesses, tmp_path, restarts):
    session = Submitted(platform, witnesses)
    log, listing = tmp_path / "log", tmp_path / "listing"
    command = str(PROGRAMS / "nsml")
    with log.open("wb") as out, listing.open("wb") as rows:
        follower = subprocess.Popen(
            [command, "logs", "-f", session.name],
            env=platform.environment, stdout=out, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        watcher = subprocess.Popen(
            [command, "ps", "-w", "-o", "jsonl"],
            env=platform.environment, stdout=rows, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_for(lambda: log.stat().st_size and listing.stat().st_size, what="both have begun")
        for _ in range(restarts):
            platform.kill("controlplane")
            platform.up()
        wait_for(lambda: session.item["state"] == "RUNNING", what="it runs still")
        session.stop()
        session.reaches("STOPPED")
        assert follower.wait(60) == 0
        told = lambda: [json.loads(row)["state"] for row in listing.read_text().splitlines()]  # noqa: E731
        wait_for(lambda: told()[-1] == "STOPPED", what="the listing tells the end")
        assert watcher.poll() is None
    finally:
        for process in (follower, watcher):
            process.kill()
            process.wait()
    whole = subprocess.run(
        [command, "logs", session.name], env=platform.environment, capture_output=True, check=True
    )
    assert log.read_bytes() == whole.stdout
    session.is_whole()
    nothing_is_left(platform, witnesses)


def test_history_that_is_moved_away_is_a_gap_that_is_told(platform, witnesses):
    session = Submitted(platform, witnesses)
    wait_for(lambda: platform.nsml("logs", session.name).stdout, what="some of it is kept")
    platform.nsml("down", "--keep-sessions")
    for file in (platform.folder / "data/controlplane").glob("history.db*"):
        file.rename(platform.folder / file.name)
    refused = platform.nsml("up", check=False)
    assert "NSML_CONTROLPLANE_ACCEPT_EMPTY=history" in refused.stdout + refused.stderr
    platform.environment["NSML_CONTROLPLANE_ACCEPT_EMPTY"] = "history"
    platform.up()
    del platform.environment["NSML_CONTROLPLANE_ACCEPT_EMPTY"]
    wait_for(lambda: platform.nsml("logs", session.name).stdout, what="the rest is kept")
    session.stop()
    session.reaches("STOPPED")
    logs = platform.nsml("logs", session.name)
    assert "(lost: " in logs.stderr
    last = [int(line.split()[1]) for line in logs.stdout.splitlines()]
    assert last == list(range(last[0], last[-1] + 1))
    assert " missing; " in platform.nsml("events", session.name, "loss", "-o", "csv").stderr
    nothing_is_left(platform, witnesses)
