"""Processes one by one: what programs choose is bounded, and what is another's by then is left out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.probes.process_list import (
    MOST_COMMAND,
    MOST_PROCESSES,
    ListedProcess,
    Look,
    listed,
    look,
    read_commands,
)
from nodeagent.probes.processes import Enclosure, Stat, read_stat
from nodeagent.shim.cgroups import PIDS, Group

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def stat_line(
    name: bytes = b"a", *, state: str = "S", parent: int = 1, ticks: int = 0, start: int = 5
) -> bytes:
    fields = [
        state,
        str(parent),
        *"000000000",
        str(ticks),
        "0",
        "0",
        "0",
        *"0000",
        str(start),
        "0",
        "3",
    ]
    return b"1 (" + name + b") " + " ".join(fields).encode()


def put(proc: Path, pid: int, stat: bytes, *, comm: bytes = b"a\n", status: bytes = b"") -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    for name, content in (("stat", stat), ("comm", comm), ("status", status)):
        (folder / name).write_bytes(content)


def seen(proc: Path, at: float, *pids: int) -> Look:
    stats = {pid: one for pid in pids if (one := read_stat(pid, proc)) is not None}
    return Look(at=at, stats=stats, count=len(stats))


def shown(proc: Path, before: Look, after: Look, **lines: bytes) -> Sequence[ListedProcess]:
    given = {int(name.removeprefix("of_")): line for name, line in lines.items()}
    return listed(before, after, proc=proc, commands=lambda _: given)


def one_of(proc: Path, line: bytes, **files: bytes) -> ListedProcess:
    put(proc, 7, stat_line(), **files)
    look_at = seen(proc, 1.0, 7)
    [found] = shown(proc, look_at, look_at, of_7=line)
    return found


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"python\0main.py\0--lr\x000.1\0", "python main.py --lr 0.1"),
        (b"a title with blanks\0\0\0\0", "a title with blanks"),
        (b"\x1b]0;t\x07\nb\0", "\x1b]0;t\x07\nb"),
        (b"\xff\xfea\xc3\0", "a"),
        (b"", "[a]"),
        (b"\0\0\0", "[a]"),
    ],
)
def test_a_command_line_is_any_text(tmp_path: Path, line: bytes, command: str) -> None:
    found = one_of(tmp_path, line)
    assert (found.command, found.is_cut) == (command, False)


def test_a_long_command_line_is_cut_and_says_so(tmp_path: Path) -> None:
    found = one_of(tmp_path, b"x" * (MOST_COMMAND + 1))
    assert (found.command, found.is_cut) == ("x" * MOST_COMMAND, True)
    exact = one_of(tmp_path, b"x" * MOST_COMMAND + b"\0")
    assert (len(exact.command), exact.is_cut) == (MOST_COMMAND, False)
    halved = one_of(tmp_path, b"x" * (MOST_COMMAND - 1) + "é".encode())
    assert (halved.command, halved.is_cut) == ("x" * (MOST_COMMAND - 1), True)


@pytest.mark.parametrize(
    ("status", "pid"),
    [
        (b"Name:\ta\nNSpid:\t7\t3\t1\nThreads:\t9\n", 1),
        (b"Name:\ta\nNSpid:\t7\n", 7),
        (b"Name:\tNSpid: 1\\nNSpid:\t9\nNSpid:\t7\n", 7),  # the kernel escapes a name's line breaks
        (b"Name:\ta\n", 7),
        (b"NSpid:\tx\n", 7),
        (b"NSpid:\n", 7),
        (b"", 7),
    ],
)
def test_the_pid_is_the_innermost(tmp_path: Path, status: bytes, pid: int) -> None:
    found = one_of(tmp_path, b"", status=status)
    assert (found.pid, found.node_pid) == (pid, 7)


def test_a_name_is_any_text_and_a_dead_process_has_no_more(tmp_path: Path) -> None:
    assert one_of(tmp_path, b"", comm=b"a)\n\xff\n").command == "[a)\n\ufffd]"
    put(tmp_path, 7, stat_line(b") Z 1 (", state="Z"), comm=b"sh\n")
    dead = seen(tmp_path, 1.0, 7)
    assert shown(tmp_path, dead, dead)[0].command == "[sh] <defunct>"


def test_figures_are_of_the_time_between_two_looks(tmp_path: Path) -> None:
    put(tmp_path, 7, stat_line(ticks=5 * TICKS))
    put(tmp_path, 8, stat_line(ticks=TICKS))
    before = seen(tmp_path, 10.0, 7, 8)
    put(tmp_path, 8, stat_line(ticks=2 * TICKS))
    busy, idle = shown(tmp_path, before, seen(tmp_path, 10.5, 7, 8))
    assert (busy.node_pid, busy.cpu_cores, busy.cpu_s) == (8, 2, 2)
    assert (idle.node_pid, idle.cpu_cores, idle.cpu_s) == (7, 0, 5)
    assert busy.memory_bytes == 3 * PAGE
    assert busy.age_s == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)


def test_a_number_that_is_anothers_by_then_is_left_out(tmp_path: Path) -> None:
    for pid in (7, 8, 9):
        put(tmp_path, pid, stat_line())
    before = seen(tmp_path, 1.0, 7, 8, 9)
    put(tmp_path, 8, stat_line(start=6))  # before the second look
    after = seen(tmp_path, 1.5, 7, 8, 9)
    put(tmp_path, 9, stat_line(start=7))  # after it
    found = shown(tmp_path, before, after, of_7=b"mine", of_8=b"theirs", of_9=b"theirs")
    assert [one.command for one in found] == ["mine"]
    (tmp_path / "7/stat").unlink()
    assert not shown(tmp_path, before, after)


def test_only_so_many_are_shown_and_those_that_do_most(tmp_path: Path) -> None:
    def stats(ticks: int) -> dict[int, Stat]:
        return {
            pid: Stat(
                is_dead=False,
                parent=1,
                ticks=pid * ticks,
                collected_ticks=0,
                start_ticks=5,
                pages=1,
            )
            for pid in range(1, MOST_PROCESSES + 11)
        }

    for pid in stats(0):
        put(tmp_path, pid, stat_line())
    count = MOST_PROCESSES + 10
    before, after = (Look(at=at, stats=stats(at), count=count) for at in (1, 2))
    found = shown(tmp_path, before, after)
    assert [one.node_pid for one in found] == list(range(count, 10, -1))


def group_of(folder: Path, *pids: int) -> Group:
    (folder / "g").mkdir(exist_ok=True)
    (folder / "g/cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return Group({"version": 2, "folders": {PIDS: str(folder)}}, "g")


def enclosure(
    group: Group | None, *, own: int = 0, in_container: bool = False, shim: int = 1
) -> Enclosure:
    me = read_stat(shim)
    return Enclosure(
        shim=shim,
        start_ticks=me.start_ticks if me else 0,
        own=own,
        in_container=in_container,
        group=group,
    )


def test_a_group_says_who_is_in_it_and_the_platforms_own_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, 20, stat_line(parent=3, start=5))
    put(tmp_path, 11, stat_line(parent=20, start=9))
    put(tmp_path, 12, stat_line(parent=20, start=9))
    put(tmp_path, 13, stat_line(parent=1, start=5))  # of somebody else
    group = group_of(tmp_path, 11, 12, 20)
    found = look(enclosure(group, own=1, in_container=True), tmp_path)
    assert found is not None
    assert (sorted(found.stats), found.count) == ([11, 12], 2)
    below = look(enclosure(group, own=2, in_container=True), tmp_path)
    assert below is not None
    assert (sorted(below.stats), below.count) == ([12], 1), "the shell of a container, too"
    whole = look(enclosure(group), tmp_path)
    assert whole is not None
    assert (sorted(whole.stats), whole.count) == ([11, 12, 20], 3)


def test_a_container_without_a_group_cannot_be_seen() -> None:
    assert look(enclosure(None, in_container=True, shim=os.getpid())) is None


@contextmanager
def child(text: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate(b"\n")


def test_real_processes_below_a_shim() -> None:
    text = "import time\nprint(flush=True)\nend = time.time() + 60\nwhile time.time() < end: pass"
    with child(text, "--busy\x1b[2J") as busy, child("print(flush=True); input()") as idle:
        where = enclosure(None, shim=os.getpid())
        before = look(where)
        time.sleep(0.5)
        after = look(where)
        assert before is not None
        assert after is not None
        found = {one.node_pid: one for one in listed(before, after)}
        busy.kill()
    assert found[busy.pid].cpu_cores > found[idle.pid].cpu_cores
    assert found[busy.pid].command.endswith("--busy\x1b[2J")
    assert found[idle.pid].memory_bytes > 1 << 20
    assert 0 <= found[idle.pid].age_s < 600
    assert os.getpid() not in found


def test_commands_are_read_up_to_a_byte_more_than_is_shown() -> None:
    with child("print(flush=True); input()", "x" * 10_000) as process:
        found = read_commands([process.pid, 2**22 + 1, os.getpid()])
        assert len(found[process.pid]) == MOST_COMMAND + 1
        assert set(found) == {process.pid, os.getpid()}
    assert read_commands([]) == {}
