"""What processes take, from what /proc and control groups say: also of what is gone, dead, or another's by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder
from nodeagent.probes.processes import (
    Enclosure,
    ReplicaUse,
    Stat,
    below,
    enclosure_of,
    read_stat,
    use_of,
)
from nodeagent.shim.cgroups import MEMORY, PIDS, Group

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SHIM = 100


def enclosure(*, own: int = 0, group: Group | None = None) -> Enclosure:
    return Enclosure(shim=SHIM, start_ticks=50, own=own, in_container=False, group=group)


def stat(
    parent: int, start: int = 60, *, ticks: int = 0, collected: int = 0, dead: bool = False
) -> Stat:
    return Stat(dead, parent, ticks, collected, start, 0 if dead else 10)


def seen(found: dict[int, Stat], *listed: int, own: int = 0) -> ReplicaUse | None:
    return below(enclosure(own=own), read=found.get, descendants=lambda _: list(listed))


def test_all_below_the_shim_counts_and_what_it_collected() -> None:
    found = {
        SHIM: stat(1, 50, ticks=999, collected=3 * TICKS),
        101: stat(SHIM, ticks=TICKS, collected=2 * TICKS),
        102: stat(101, ticks=TICKS),
        103: stat(101, ticks=TICKS, dead=True),
    }
    assert seen(found, 101, 102, 103) == ReplicaUse(cpu_s=8, memory_bytes=20 * PAGE, processes=2)
    # The platform's own first process counts with its time alone: that is what it collected.
    assert seen(found, 101, 102, 103, own=1) == ReplicaUse(
        cpu_s=8, memory_bytes=10 * PAGE, processes=1
    )
    assert seen(found, 101, own=1) is None


def test_what_is_gone_or_anothers_by_then_does_not_count() -> None:
    found = {
        SHIM: stat(1, 50),
        101: stat(SHIM, ticks=TICKS),
        103: stat(7, ticks=77 * TICKS),  # of another session
        104: stat(SHIM, 40, ticks=77 * TICKS),  # began before its shim
    }
    assert seen(found, 101, 102, 103, 104) == ReplicaUse(
        cpu_s=1, memory_bytes=10 * PAGE, processes=1
    )
    assert seen({**found, SHIM: stat(1, 51)}, 101) is None
    assert seen({101: found[101]}, 101) is None
    assert seen(found) is None


def test_a_shim_that_is_replaced_while_its_processes_are_read_tells_nothing() -> None:
    answers = iter([stat(1, 50), stat(SHIM), stat(1, 70)])
    told = below(enclosure(), read=lambda _: next(answers), descendants=lambda _: [101])
    assert told is None


@pytest.mark.parametrize(
    "said",
    ["", "1 (a", "1 (a) S 1", "1 (a) S " + "x " * 40, "1 (a) S " + "1 " * 10, None],
)
def test_what_cannot_be_read_is_none(tmp_path: Path, said: str | None) -> None:
    (tmp_path / "1").mkdir()
    if said is not None:
        (tmp_path / "1" / "stat").write_text(said)
    assert read_stat(1, tmp_path) is None


def test_a_name_cannot_pass_for_figures(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    fields = " ".join(str(number) for number in range(1, 50))
    (tmp_path / "1" / "stat").write_bytes(b"1 (a) S 9 9 9) \xff\n(b) Z " + fields.encode())
    assert read_stat(1, tmp_path) == Stat(
        is_dead=True, parent=1, ticks=23, collected_ticks=27, start_ticks=19, pages=21
    )


def test_real_processes_are_seen() -> None:
    me = read_stat(os.getpid())
    assert me is not None
    where = Enclosure(
        shim=os.getpid(),
        start_ticks=me.start_ticks,
        own=0,
        in_container=False,
        group=None,
    )
    text = "held = bytearray(64 << 20)\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        use = use_of(where)
        assert use is not None
        assert use.processes >= 1
        assert use.memory_bytes > 64 << 20
        assert use.cpu_s > 0
        child.communicate(b"\n")


def group_in(folder: Path, controllers: tuple[str, ...], **files: str) -> Group:
    (folder / "g").mkdir()
    for name, content in files.items():
        (folder / "g" / name.replace("_", ".", 1)).write_text(content)
    return Group({"version": 2, "folders": dict.fromkeys(controllers, str(folder))}, "g")


def test_a_group_counts_what_is_in_it(tmp_path: Path) -> None:
    files = {
        "cgroup_procs": "7\n8\n9\n",
        "cpu_stat": "usage_usec 2500000\nuser_usec 1\n",
        "memory_stat": "anon 4096\nfile 999999\nshmem 10\n",
    }
    group = group_in(tmp_path, (MEMORY, PIDS), **files)
    assert use_of(enclosure(own=1, group=group)) == ReplicaUse(
        cpu_s=2.5, memory_bytes=4106, processes=2
    )
    again = group.described()
    assert Group(again["base"], again["name"]).took_s() == 2.5  # type: ignore[arg-type]
    for name in ("cgroup.procs", "cpu.stat", "memory.stat"):
        (tmp_path / "g" / name).unlink()
    assert use_of(enclosure(own=1, group=group)) is None
    assert group.took_s() is None


@pytest.mark.parametrize(
    ("claim", "spec", "group", "is_found"),
    [
        ('{"pid": 5, "start_ticks": 6, "boot_id": "b"}', '{"namespace": null}', None, True),
        ('{"pid": 5, "start_ticks": 6, "boot_id": "old"}', "{}", None, False),
        ('{"pid": 5', "{}", None, False),
        (None, "{}", None, False),
        ('{"pid": 5, "start_ticks": 6, "boot_id": "b"}', "[]", None, False),
        ('{"pid": 5, "start_ticks": 6, "boot_id": "b"}', None, None, False),
        ('{"pid": 5, "start_ticks": 6, "boot_id": "b"}', '{"container": {"a": 1}}', None, False),
        ('{"pid": 5, "start_ticks": 6, "boot_id": "b"}', '{"container": {"a": 1}}', "x", False),
        (
            '{"pid": 5, "start_ticks": 6, "boot_id": "b"}',
            '{"container": {"a": 1}}',
            '{"group": {"base": {"version": 2, "folders": {"memory": "/x"}}, "name": "n"}}',
            True,
        ),
    ],
)
def test_where_processes_are_is_known_from_the_folder(
    tmp_path: Path, claim: str | None, spec: str | None, group: str | None, is_found: bool
) -> None:
    folder = ReplicaFolder(tmp_path)
    for path, content in ((folder.shim, claim), (folder.spec, spec), (folder.group, group)):
        if content is not None:
            path.write_text(content)
    assert (enclosure_of(folder, "b") is not None) is is_found
