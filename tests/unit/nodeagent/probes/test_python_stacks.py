"""Stacks of real processes, and whatever a program can make its stacks say."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.probes import python_stacks
from nodeagent.probes.process_list import Look
from nodeagent.probes.processes import read_stat
from nodeagent.probes.python_stacks import StacksUnseen, python_processes, read_threads, reader
from tests.e2e.programs import wait_for

PROGRAM = """
import os, sys, threading, time

if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))

class Evil:
    def __repr__(self):
        print("its code ran", flush=True)

def innermost(depth, text):
    evil = Evil()
    print("ready", flush=True)
    time.sleep(600)

def deep(depth, text="a\\x1b[2J\\udcff"):
    if depth:
        deep(depth - 1)
    else:
        innermost(depth, text)

sys.setrecursionlimit(10_000)
threading.Thread(target=time.sleep, args=(600,), name="side\\x1b[2J", daemon=True).start()
deep(int(sys.argv[1]))
"""

BUSY = """
def b(n):
    return b(n - 1) + sum(i * i for i in range(9)) if n else 1

def a():
    print("ready", flush=True)
    while True:
        b(9)

a()
"""
MACHINES = "/usr/bin/python3"


@contextmanager
def running(depth=3, *user, python=sys.executable):
    words = map(str, (depth, *user))
    process = subprocess.Popen([python, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def threads_of(process, *, with_locals=False):
    return read(process.pid, read_stat(process.pid).start_ticks, with_locals=with_locals)


def read(pid, start_ticks, *, program=None, with_locals=False):
    program = program or reader()
    return asyncio.run(read_threads(pid, start_ticks, program=program, with_locals=with_locals))


def test_the_main_thread_is_first_and_its_outermost_call_too():
    with running() as process:
        found, left_out = threads_of(process)
    assert left_out == 0
    assert [one.name for one in found] == ["MainThread", "side\x1b[2J"]
    assert [one.function for one in found[0].frames] == ["<module>", *["deep"] * 4, "innermost"]
    assert found[0].frames[-1].line == 16
    assert not found[0].is_active
    assert not any(frame.variables for frame in found[0].frames)


def test_locals_are_read_without_running_anything_of_the_program():
    with running() as process:
        found, _ = threads_of(process, with_locals=True)
        values = dict(found[0].frames[-1].variables)
        process.kill()
        assert process.stdout.read() == ""
    assert values["depth"] == "0"
    assert values["evil"].startswith("<Evil at 0x")
    assert len(values["text"]) < 50


def test_of_a_deep_stack_both_ends_are_kept():
    with running(depth=3000) as process:
        found, _ = threads_of(process)
    main = found[0]
    assert len(main.frames) + main.frames_left_out == 3003
    assert main.frames_left_out > 2500
    assert (main.frames[0].function, main.frames[-1].function) == ("<module>", "innermost")


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path(MACHINES).exists(),
    reason="another user's process is read by root, and by a path that this user can go",
)
def test_the_reader_is_the_user_whose_process_it_reads_and_has_one_capability(tmp_path):
    reads = shutil.copy("/bin/cat", tmp_path)
    tmp_path.chmod(0o700)  # no user has a way to it
    with running(3, 4321, python=MACHINES) as process:
        found, _ = threads_of(process)
        assert found[0].frames[-1].function == "innermost"
        assert python_stacks._owner(process.pid) == (4321, 4321)
    words = (str(os.getpid()), "4321", "4321", str(reads), "/proc/self/status")
    command = python_stacks.shim_command("stack_reader", *words)
    written, _ = asyncio.run(python_stacks._output_of(command))
    said = written.decode().splitlines()
    status = dict(line.split(":\t", 1) for line in said if ":\t" in line)
    assert status["Uid"].split() == status["Gid"].split() == ["4321"] * 4
    assert status["Groups"].strip() == ""
    for kind in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 1 << 19
    assert status["NoNewPrivs"].strip() == "1"


def test_who_computes_is_active_by_the_number_that_it_has_inside(tmp_path):
    for tid, (state, inner) in {"41": ("R (running)", 7), "42": ("S (sleeping)", 8)}.items():
        task = tmp_path / "40" / "task" / tid
        task.mkdir(parents=True)
        (task / "status").write_text(
            f"Name:\tx\nState:\t{state}\nNSpid:\t{tid}\t{inner}\nUid:\t0\n"
        )
    assert python_stacks.running_threads(40, tmp_path) == {7}
    assert python_stacks.running_threads(41, tmp_path) == set()


def test_a_thread_without_a_name_has_that_of_its_place():
    said = {"thread_name": None, "owns_gil": False, "active": False, "frames": []}
    found, _ = python_stacks._threads([{**said, "os_thread_id": n} for n in (6, 9, 7)], {9}, 7)
    assert [(one.name, one.is_active) for one in found] == [
        ("MainThread", False),
        ("(unnamed)", False),
        ("(unnamed)", True),
    ]


def test_threads_without_a_number_are_not_said_to_wait():
    said = {"os_thread_id": None, "owns_gil": False, "active": True, "frames": []}
    names = ("loads", "MainThread", None)
    found, _ = python_stacks._threads([{**said, "thread_name": one} for one in names], {7}, 7)
    assert [(one.name, one.is_active) for one in found] == [
        ("MainThread", True),
        ("loads", None),
        ("(unnamed)", None),
    ]


def test_one_that_computes_is_read_as_well():
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            for _ in range(10):
                found, _ = threads_of(process)
                assert found[0].frames[0].function == "<module>"
                assert found[0].frames[1].function == "a"
        finally:
            process.kill()


def test_one_that_its_user_has_stopped_is_read_and_stays_stopped():
    with running() as process:
        state = Path(f"/proc/{process.pid}/status")
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: "State:\tT" in state.read_text(), what="it is stopped")
        found, _ = threads_of(process)
        assert found[0].frames[-1].function == "innermost"
        assert "State:\tT" in state.read_text()


def test_of_stacks_that_are_too_long_the_whole_ones_are_kept(monkeypatch):
    thread = '{"thread_id": 1, "thread_name": "x, [", "os_thread_id": null, "owns_gil": false, "frames": []}'
    written = f"[\n  {thread},\n  {thread}, {thread[:-9]}".encode()

    async def output(_):
        return written, True

    monkeypatch.setattr(python_stacks, "_output_of", output)
    own = os.getpid()
    found, left_out = read(own, read_stat(own).start_ticks)
    assert [one.name for one in found] == ["x, [", "x, ["]
    assert left_out >= 1


def test_nothing_reads_on_where_nobody_waits(tmp_path):
    async def left():
        reading = asyncio.create_task(python_stacks._output_of(["sleep", "6543"]))
        await asyncio.sleep(0.3)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(left())
    assert subprocess.run(["pgrep", "-f", "^sleep 6543"], check=False).returncode == 1


def test_who_is_gone_or_another_is_not_read():
    with running() as process:
        start_ticks = read_stat(process.pid).start_ticks
        with pytest.raises(StacksUnseen, match="it has ended"):
            read(process.pid, start_ticks + 1)
    with pytest.raises(StacksUnseen, match="it has ended"):
        read(process.pid, start_ticks)


def test_only_python_is_read():
    with running() as process, subprocess.Popen(["sleep", "600"]) as other:
        try:
            stats = {pid: read_stat(pid) for pid in (other.pid, process.pid)}
            found = Look(at=0.0, stats=stats, count=2)
            assert python_processes(found) == [process.pid]
            with pytest.raises(StacksUnseen):
                threads_of(other)
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "echo 'Error: Permission Denied: Try sudo' >&2; exit 1",
            "another debugger reads it|without root",
        ),
        (
            "echo 'Error: Failed to find python version from target process' >&2; exit 1",
            "just starting",
        ),
        ("echo 'Error: something else' >&2; exit 1", "^something else$"),
        ("exit 1", "could not be read"),
        ("echo '[{}]'", "cannot be understood"),
        ("printf '%0.s[' $(seq 1 100000)", "cannot be understood"),
        ("echo 5", "cannot be understood"),
        ("exec cat /dev/zero", "cannot be understood"),
        ("exec sleep 600", "within 0.2 s"),
    ],
)
def test_a_reader_that_does_not_do_it_is_an_answer(script, why, monkeypatch, tmp_path):
    monkeypatch.setattr(python_stacks, "_WITHIN_S", 0.2 if "sleep" in script else 60.0)
    shell = tmp_path / "sh"
    shutil.copy("/bin/sh", shell)
    # what would be read by py-spy is a script for a shell
    command = python_stacks.shim_command
    monkeypatch.setattr(
        python_stacks, "shim_command", lambda *words: command(*words[:5], "-c", script)
    )
    own = os.getpid()
    with pytest.raises(StacksUnseen, match=why):
        read(own, read_stat(own).start_ticks, program=str(shell))


def test_texts_and_numbers_of_any_size_are_bounded():
    frame = {
        "name": "f" * 9000,
        "filename": "\udcff",
        "line": -5,
        "locals": [{"name": "x", "repr": "y" * 9000}] * 80,
    }
    said = {
        "thread_name": None,
        "os_thread_id": None,
        "owns_gil": True,
        "active": True,
        "frames": [frame] * 500,
    }
    few = {**said, "frames": [frame]}
    [thread, *_], left_out = python_stacks._threads([said, *[few] * 299], (), 7)
    assert left_out == 44
    assert (len(thread.frames), thread.frames_left_out) == (200, 300)
    assert len(thread.frames[0].function) == 500
    assert thread.frames[0].line == 0
    assert len(thread.frames[0].variables) == 50
    assert len(thread.frames[0].variables[0][1]) == 200
