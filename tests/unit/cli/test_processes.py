"""Programs in the background, on real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path

import pytest

from cli.app import App
from cli.exits import CommandError
from cli.local import data_folder as local
from cli.local import processes
from cli.local.bringup import LEAST_ROOM_BYTES, READY_WITHIN_S, BringUp, stop_program, too_full
from cli.local.data_folder import Choices, DataFolder
from cli.local.processes import Program, StartFailed
from nsml.common import log_files


def spawn(code: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, **options
    )


@pytest.fixture
def sleeper():
    process = spawn("import time; print('on', flush=True); time.sleep(600)")
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def program_of(process: subprocess.Popen[bytes]) -> Program:
    found = processes.find(process.pid)
    assert found is not None
    return found


def test_a_program_is_known_by_its_id_and_its_start(sleeper, tmp_path: Path) -> None:
    program = program_of(sleeper)
    record = tmp_path / "x.pid"
    record.write_text(json.dumps({"pid": program.pid, "start_ticks": program.start_ticks}))
    assert processes.recorded(record) == program
    record.write_text(json.dumps({"pid": program.pid, "start_ticks": program.start_ticks - 1}))
    assert processes.recorded(record) is None
    assert not processes.signal_program(
        Program(pid=program.pid, start_ticks=program.start_ticks - 1), signal.SIGKILL
    )
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "null"])
def test_a_damaged_record_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.pid").write_text(text)
    assert processes.recorded(tmp_path / "x.pid") is None


def test_a_program_that_waits_to_be_collected_is_not_alive(sleeper) -> None:
    program = program_of(sleeper)
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not program.is_alive
    assert processes.wait_gone(program, deadline_s=60)


def test_the_end_is_orderly_where_the_program_is(sleeper) -> None:
    assert processes.end(program_of(sleeper), grace_s=60)


def test_a_stubborn_or_stopped_program_is_killed_with_its_children() -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = spawn(code)
    child = processes.find(int(process.stdout.readline()))
    program = program_of(process)
    process.send_signal(signal.SIGSTOP)
    assert not processes.end(program, grace_s=0.5)
    assert not program.is_alive
    assert child is not None
    assert not child.is_alive
    process.wait()


def test_orphans_are_ended_only_where_they_belong_to_the_folder(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "for where in sys.argv[1:]:\n"
        "    c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], cwd=where)\n"
        "    print(c.pid, flush=True)\n"
    )
    ours, others = tmp_path / "ours", tmp_path / "oursbutnot"
    ours.mkdir()
    others.mkdir()
    leader = subprocess.Popen(
        [sys.executable, "-c", code, str(ours), str(others)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    mine, foreign = (processes.find(int(leader.stdout.readline())) for _ in range(2))
    leader.wait()
    assert mine is not None
    assert foreign is not None
    try:
        processes.end_orphans(leader.pid, ours)
        assert not mine.is_alive
        assert foreign.is_alive
    finally:
        processes.signal_program(foreign, signal.SIGKILL)


def test_launching_waits_for_the_programs_own_word(tmp_path: Path, monkeypatch) -> None:
    script = (
        "import json, os, sys, time\n"
        "print('hello', flush=True)\n"
        "open(sys.argv[1], 'w').write(json.dumps({'pid': os.getpid(), 'address': 'x'}))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(processes, "program", lambda _: [sys.executable, "-c", script])
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps({"pid": 1, "address": "stale"}))
    launched = processes.launch("x", [str(ready)], folder=tmp_path, environ=os.environ)
    program = processes.recorded(tmp_path / "x.pid")
    try:
        assert launched.wait_ready(ready, deadline_s=60)["address"] == "x"
        assert program is not None
        assert program.pid == launched.pid
        assert os.getsid(launched.pid) == launched.pid
        assert stat.S_IMODE((tmp_path / "x.log").stat().st_mode) == 0o600
    finally:
        assert program is not None
        processes.end(program, grace_s=5)


def test_a_long_log_is_put_aside_at_a_start(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(processes, "put_aside", partial(log_files.put_aside, most_bytes=10))
    monkeypatch.setattr(processes, "program", lambda _: [sys.executable, "-c", "print('new')"])
    log, aside = tmp_path / "x.log", tmp_path / "x.log.1"
    for written, kept in ((b"short\n", None), (b"longer than ten\n", b"longer than ten\n")):
        log.write_bytes(written)
        processes.launch("x", [], folder=tmp_path, environ=os.environ)._process.wait()
        assert (aside.read_bytes() if aside.exists() else None) == kept
        assert log.read_bytes() == (b"new\n" if kept else b"short\nnew\n")


def test_a_program_that_ends_at_once_is_told_in_its_own_words(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "x.log").write_text("old words\n")
    script = (
        "print('{\"event\": \"etcd.started\"}', flush=True); raise SystemExit('the disk is full')"
    )
    monkeypatch.setattr(processes, "program", lambda _: [sys.executable, "-c", script])
    launched = processes.launch("x", [], folder=tmp_path, environ=os.environ)
    with pytest.raises(StartFailed, match=r"^the disk is full$"):
        launched.wait_ready(tmp_path / "ready.json", deadline_s=60)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    assert too_full(tmp_path, 586_000) == f"the disk of {tmp_path} is full: 586.0 kB are free"
    assert not too_full(tmp_path, LEAST_ROOM_BYTES)


def test_waiting_ends_with_its_deadline() -> None:
    begun = time.monotonic()
    with pytest.raises(StartFailed, match="not ready"):
        processes.wait_until(dict, alive=lambda: True, deadline_s=0.05)
    assert time.monotonic() >= begun


class SetOn:
    """The clock of commands that wait for a start: once they print what it waits for, a minute has passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._by_s = 0.0
        say = App.say

        def said(app: App, text: str, **more: str) -> None:
            say(app, text, **more)
            if "waits" in text:
                self._by_s += READY_WITHIN_S
                (folder / text.rpartition(" ")[2]).touch()

        monkeypatch.setattr(App, "say", said)
        monkeypatch.setattr(processes, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self._by_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_who_waits_for_something_else_is_granted_that_time_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import json, os, sys, time\n"
        "me = {'pid': os.getpid()}\n"
        "folder = sys.argv[1] + '/agent/'\n"
        "for seconds, what in (60, 'the engine'), (90, 'an image'):\n"
        "    words = {**me, 'within_s': seconds, 'awaits': what}\n"
        "    open(folder + 's', 'w').write(json.dumps(words))\n"
        "    os.rename(folder + 's', folder + 'starting.json')\n"
        "    while not os.path.exists(folder + what.split()[-1]): time.sleep(0.01)\n"
        "open(folder + 'r', 'w').write(json.dumps(me))\n"
        "os.rename(folder + 'r', folder + 'ready.json')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(
        processes, "program", lambda _: [sys.executable, "-c", script, str(tmp_path)]
    )
    folder = DataFolder(tmp_path)
    (tmp_path / "agent").mkdir()
    SetOn(monkeypatch, tmp_path / "agent")
    folder.starting("agent").write_text(json.dumps({"pid": 1, "within_s": 600, "awaits": "stale"}))
    app = App(environ=os.environ)
    try:
        assert BringUp(app, folder).ensure("agent", {})["pid"]
        said = capsys.readouterr().err
        assert said.count("waits up to 60 s: the engine") == 1
        assert said.count("waits up to 90 s: an image") == 1
        assert "stale" not in said
    finally:
        stop_program(folder, "agent")


def test_who_waits_without_an_end_is_told_of_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    awaits = "etcd does not answer (http://127.0.0.1:2379: Connection refused)"
    script = (
        "import json, os, sys, time\n"
        "folder = sys.argv[1] + '/controlplane/'\n"
        f"words = {{'pid': os.getpid(), 'awaits': {awaits!r}}}\n"
        "open(folder + 's', 'w').write(json.dumps(words))\n"
        "os.rename(folder + 's', folder + 'starting.json')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(
        processes, "program", lambda _: [sys.executable, "-c", script, str(tmp_path)]
    )
    folder = DataFolder(tmp_path)
    (tmp_path / "controlplane").mkdir()
    SetOn(monkeypatch, tmp_path / "controlplane")
    bring_up = BringUp(App(environ=os.environ), folder)
    with pytest.raises(CommandError) as caught, bring_up.undoing():
        bring_up.ensure("controlplane", {})
    assert caught.value.why == f"it still waits: {awaits}"
    assert caught.value.advice.startswith("start it, or mend the way to it; then nsml up")
    assert capsys.readouterr().err.count(f"waits: {awaits}\n") == 1
    assert folder.running("controlplane") is None
    assert not folder.starting("controlplane").exists()


def test_choices_are_kept_and_damage_is_told(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    assert folder.choices() is None
    choices = Choices(coordination="etcd", port=1234, node="a", simulate_gpus=2, admin="kim")
    folder.keep(choices)
    assert folder.choices() == choices
    for text in ("{", "[]", '{"version": 2}', '{"version": 1, "future": 3}'):
        folder.choices_file.write_text(text)
        with pytest.raises(CommandError, match="cannot understand"):
            folder.choices()


def test_only_one_works_in_a_folder(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    with folder.locked():
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        with pytest.raises(CommandError, match="at work"), folder.locked():
            pass
    with folder.locked():
        pass


def test_settings_survive_as_toml() -> None:
    settings = {
        "path": Path('/a "b"\\c\n'),
        "text": "둘째 \x7f",
        "number": 3,
        "share": 0.5,
        "truth": True,
        "list": ["a", "b'"],
    }
    read = tomllib.loads(local.toml(settings))
    assert read == {**settings, "path": str(settings["path"])}


def test_the_file_that_is_written_anew_says_so_first_and_names_the_other(tmp_path: Path) -> None:
    file = DataFolder(tmp_path).write_settings("agent", {"node": "a"})
    assert file == tmp_path / "agent.toml"
    first = file.read_text().splitlines()[0]
    assert (
        first
        == "# nsml overwrites this file: put your own settings into agent.site.toml, beside it."
    )
    assert tomllib.loads(file.read_text()) == {"node": "a"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("login", "name"),
    [
        ("Kim.Lee", "kim.lee"),
        ("kim..lee.", "kim-.lee"),
        ("x" * 31 + ".y", "x" * 31),
        ("1000", "user"),
        ("", "user"),
        ("DOMAIN\\kim", "domain-kim"),
        ("_x", "x"),
    ],
)
def test_login_names_become_users(monkeypatch, login: str, name: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: login)
    assert local.user_name() == name


@pytest.mark.parametrize(
    ("host", "name"),
    [("gpu-1.lab.example", "gpu-1"), ("GPU_1", "gpu-1"), ("---", "node"), ("a" * 80, "a" * 63)],
)
def test_host_names_become_nodes(monkeypatch, host: str, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert local.node_name() == name
