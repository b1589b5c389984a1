"""Control groups as files: what version 2 is told and says, where this machine may have only version 1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.shim.cgroups import (
    BUILDS,
    CPU,
    MEMORY,
    PIDS,
    Group,
    find_base,
    group_of_process,
    names_in,
    parent_group,
    places_of,
    remove_empty,
)
from nodeagent.shim.watch import memory_excess

if TYPE_CHECKING:
    from nodeagent.shim.cgroups import Base

FILES = {
    "cgroup.procs": "",
    "cgroup.kill": "",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "pids.max": "max",
    "cpu.max": "max 100000",
}


def second_version(folder: Path, **files: str) -> Group:
    group = folder / "replica"
    group.mkdir()
    for name, content in {**FILES, **files}.items():
        (group / name).write_text(content)
    base = {"version": 2, "folders": dict.fromkeys((MEMORY, PIDS, CPU), str(folder))}
    return Group(base, "replica")


def read(folder: Path, name: str) -> str:
    return (folder / "replica" / name).read_text()


def test_limits_are_written_as_version_2_wants_them(tmp_path: Path) -> None:
    group = second_version(tmp_path)
    group.make(memory_bytes=1_000_000, process_count=64)
    assert read(tmp_path, "memory.max").startswith("1000000")
    assert read(tmp_path, "memory.swap.max").startswith("0")
    assert read(tmp_path, "memory.oom.group").startswith("1")
    assert read(tmp_path, "pids.max").startswith("64")


def test_processor_time_is_bounded_last_and_not_for_what_has_to_end(tmp_path: Path) -> None:
    group = second_version(tmp_path)
    group.make(memory_bytes=None, process_count=None)
    entrance = group.open_entrance(cpus=1.5)
    entrance.join(2**22)
    assert read(tmp_path, "cpu.max") == FILES["cpu.max"]
    entrance.limit()
    assert read(tmp_path, "cpu.max") == "150000 100000"
    entrance.close()
    (tmp_path / "replica" / "cgroup.procs").write_text("0")
    group.kill()
    assert read(tmp_path, "cpu.max").startswith("max")


def test_a_group_of_groups_bounds_their_memory_and_never_ends_all_of_them(tmp_path: Path) -> None:
    """One build that uses it up is ended, not those beside it."""
    above = tmp_path / BUILDS
    above.mkdir()
    for name in FILES:
        (above / name).write_text("0")
    (above / "cgroup.subtree_control").write_text("")
    base: Base = {"version": 2, "folders": dict.fromkeys((MEMORY, PIDS, CPU), str(tmp_path))}
    for _ in range(2):
        assert parent_group(base, BUILDS, memory_bytes=1_000_000) == {
            "version": 2,
            "folders": dict.fromkeys((MEMORY, PIDS, CPU), str(above)),
        }
    assert (above / "memory.max").read_text().startswith("1000000")
    assert (above / "memory.oom.group").read_text() == "0"
    assert (above / "cgroup.subtree_control").read_text().startswith("+cpu")
    assert names_in(base) == [], "it is no replica's"


@pytest.mark.parametrize(("cpus", "said"), [(0.001, "1000 1000000"), (0.01, "1000 100000")])
def test_the_smallest_share_is_one_that_the_kernel_takes(
    tmp_path: Path, cpus: float, said: str
) -> None:
    group = second_version(tmp_path)
    group.make(memory_bytes=None, process_count=None)
    entrance = group.open_entrance(cpus=cpus)
    entrance.limit()
    entrance.close()
    assert read(tmp_path, "cpu.max").startswith(said)
    assert read(tmp_path, "memory.max") == "max"


def test_a_limit_that_cannot_be_set_is_an_error_that_says_which(tmp_path: Path) -> None:
    group = second_version(tmp_path)
    (tmp_path / "replica" / "pids.max").unlink()
    with pytest.raises(OSError, match=r"pids\.max of its control group"):
        group.make(memory_bytes=None, process_count=5)


def test_what_version_2_says_of_memory(tmp_path: Path) -> None:
    group = second_version(
        tmp_path,
        **{
            "memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 1\n",
            "memory.peak": "999424\n",
            "memory.stat": "anon 700\nfile 90000\nshmem 50\n",
            "pids.events": "max 7\n",
            "cgroup.procs": "12\n0\n7\n",
        },
    )
    assert group.kills_for_memory() == 2
    assert group.has_met_its_memory(10_000_000)
    assert (group.memory_peak(), group.memory_used()) == (999_424, 750)
    assert (group.refused_forks(), group.members()) == (7, [7, 12])


def test_where_version_2_keeps_no_peak_what_met_its_limit_has_used_that(tmp_path: Path) -> None:
    """Before Linux 5.19."""
    said = {"memory.max": "200000000\n", "memory.events": "oom 1\noom_kill 1\n"}
    group = second_version(tmp_path, **said, **{"memory.stat": "anon 12000000\n"})
    assert group.memory_peak() == 200_000_000
    _, message = memory_excess(group, 200_000_000, group.memory_used()) or ("", "")
    assert "used 190.7 MiB of 190.7 MiB given" in message


def test_where_version_2_keeps_no_peak_what_met_no_limit_has_none(tmp_path: Path) -> None:
    said = {"memory.max": "200000000\n", "memory.events": "oom 0\noom_kill 1\n"}
    assert second_version(tmp_path, **said).memory_peak() == 0


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_group_says_of_time_and_of_what_processes_held(tmp_path: Path, version: int) -> None:
    group = group_of_process(os.getpid(), **hierarchies(tmp_path, version))
    assert group is not None
    assert group.cpu_s() == pytest.approx((3.0, 1.0))
    assert group.memory_peak_held() == 1_000_000 - 400_000 + 50_000
    assert group.controllers == {MEMORY, PIDS, CPU}


def hierarchies(tmp_path: Path, version: int) -> dict[str, str]:
    """Of a machine on which this process is in the group /box, as files."""
    top, proc = tmp_path / "cgroup", tmp_path / "proc"
    kinds = ["memory", "pids", "cpu", "cpuacct"] if version == 1 else [""]
    files = {
        "cpuacct.usage": "4000000000\n",
        "cpuacct.stat": "user 297\nsystem 99\n",
        "cpu.stat": "usage_usec 4000000\nuser_usec 3000000\nsystem_usec 1000000\n",
        "memory.max_usage_in_bytes": "1000000\n",
        "memory.peak": "1000000\n",
        "memory.stat": "cache 1\nfile 400000\nshmem 50000\ntotal_cache 400000\ntotal_shmem 50000\n",
        "cgroup.controllers": "cpu memory pids\n",
    }
    mounts, groups = [], []
    for number, kind in enumerate(kinds):
        box = top / kind / "box"
        box.mkdir(parents=True)
        for name, content in files.items():
            (box / name).write_text(content)
        filesystem = f"cgroup cgroup rw,{kind}" if kind else "cgroup2 cgroup2 rw"
        mounts.append(f"30 20 0:26 / {top / kind} rw - {filesystem}\n")
        groups.append(f"{number}:{kind}:/box\n")
    for name in ("self", str(os.getpid())):
        (proc / name).mkdir(parents=True)
        (proc / name / "mountinfo").write_text("".join(mounts))
        (proc / name / "cgroup").write_text("".join(groups))
    return {"root": str(top), "proc": str(proc / "self")}


def test_a_kill_by_the_machine_is_not_one_by_the_limit(tmp_path: Path) -> None:
    group = second_version(
        tmp_path, **{"memory.events": "oom 0\noom_kill 1\n", "memory.peak": "1000000\n"}
    )
    assert group.kills_for_memory() == 1
    assert not group.has_met_its_memory(10_000_000)
    assert group.has_met_its_memory(10_000_000, seen=9_990_000)


def test_a_group_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    base = {"version": 1, "folders": dict.fromkeys((MEMORY, PIDS, CPU), str(tmp_path))}
    group = Group(base, "gone")
    assert group.members() == []
    assert not group.kills_for_memory()
    group.kill()
    assert group.remove()


def machine(
    tmp_path: Path,
    *,
    procs: str,
    unit: str = "unit",
    own: str = "",
    passed: str = "cpu memory pids",
) -> tuple[str, str]:
    """A machine with version 2, whose agent is in the group /unit/own; its files are plain ones."""
    top = tmp_path / "cgroup"
    (top / unit / own).mkdir(parents=True)
    (top / unit / own / "cgroup.procs").touch()
    files = {"cgroup.subtree_control": "", "cgroup.procs": procs}
    for name, content in {**files, "cgroup.type": "domain", "cgroup.controllers": passed}.items():
        (top / unit / name).write_text(content)
    for name, content in {**files, "cgroup.controllers": "cpu memory pids"}.items():
        (top / name).write_text(content)
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(f"0::/{unit}/{own}\n")
    (proc / "mountinfo").write_text(f"30 20 0:26 / {top} rw - cgroup2 cgroup2 rw,nsdelegate\n")
    return str(top), str(proc)


def machine_unit(tmp_path: Path, name: str, *, procs: str, passed: str = "") -> Path:
    """The group of another unit on that machine, which passes these controllers on already."""
    group = tmp_path / "cgroup" / name
    group.mkdir()
    files = {"cgroup.procs": procs, "cgroup.subtree_control": passed, "cgroup.type": "domain"}
    for file, content in {**files, "cgroup.controllers": "cpu memory pids"}.items():
        (group / file).write_text(content)
    return group


def trial() -> int:
    pytest.fail("nothing can be tried in plain files")


@pytest.mark.skipif(os.geteuid() == 0, reason="root looks for another place then")
def test_a_group_that_others_are_in_is_left_alone(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, procs=f"{os.getpid()}\n1\n")
    base, reason = find_base(
        "nsml-x", lambda: pytest.fail("nothing is tried"), root=root, proc=proc
    )
    assert base is None
    assert "other processes" in reason


def test_a_service_that_is_started_in_the_group_itself_gets_none_inside(tmp_path: Path) -> None:
    """Once that group passed controllers on, systemd could not start the agent in it again."""
    root, proc = machine(tmp_path, procs=f"{os.getpid()}\n", unit="nsml-agent.service")
    _, reason = find_base("nsml-x", lambda: pytest.fail("tried"), root=root, proc=proc)
    assert not [one for one in Path(root, "nsml-agent.service").iterdir() if one.is_dir()]
    if os.geteuid() == 0:
        assert Path(root, "nsml-x").is_dir()
    else:
        assert "could not be started again" in reason


def test_a_service_that_is_started_in_a_group_inside_has_its_groups_beside_that(
    tmp_path: Path,
) -> None:
    root, proc = machine(tmp_path, procs="", unit="nsml-agent.service", own="agent")
    find_base("nsml-x", lambda: pytest.fail("tried"), root=root, proc=proc)
    unit = Path(root, "nsml-agent.service")
    assert (unit / "nsml-x").is_dir()
    assert (unit / "cgroup.subtree_control").read_text().startswith("+")


def test_groups_are_made_in_a_unit_beside_that_is_not_started_again(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, procs=f"{os.getpid()}\n", unit="system.slice/nsml-agent.service")
    waits = machine_unit(tmp_path, "system.slice/nsml-replicas.service", procs="77\n")
    (waits / "agent").mkdir()
    (waits / "agent" / "cgroup.procs").touch()
    find_base("nsml-x", trial, unit=waits.name, root=root, proc=proc)
    assert (waits / "nsml-x").is_dir()
    assert (waits / "cgroup.subtree_control").read_text().startswith("+")
    assert (waits / "agent" / "cgroup.procs").read_text() == "77", "its process made room"
    own = waits.parent / "nsml-agent.service"
    assert (own / "cgroup.subtree_control").read_text() == ""
    assert not [one for one in own.iterdir() if one.is_dir()]


def test_groups_in_a_unit_beside_are_found_again_and_nothing_is_moved(tmp_path: Path) -> None:
    """Also where that unit itself has ended meanwhile: replicas keep its group."""
    root, proc = machine(tmp_path, procs="", unit="nsml-agent.service", own="agent")
    waits = machine_unit(tmp_path, "nsml-replicas.service", procs="", passed="cpu memory pids")
    (waits / "nsml-x").mkdir()
    (waits / "nsml-x" / "cgroup.subtree_control").write_text("cpu memory pids")
    base, reason = find_base("nsml-x", trial, unit=waits.name, root=root, proc=proc)
    assert base is None
    assert "pids.max" in reason, "a group was tried in what was there"
    assert not (waits / "agent").exists()
    assert not Path(root, "nsml-agent.service", "nsml-x").exists()


def test_without_the_unit_beside_groups_are_made_where_they_were(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, procs="", unit="nsml-agent.service", own="agent")
    find_base("nsml-x", trial, unit="nsml-replicas.service", root=root, proc=proc)
    assert Path(root, "nsml-agent.service", "nsml-x").is_dir()


def test_every_place_that_groups_may_have_been_made_in_is_known(tmp_path: Path) -> None:
    """An agent at another level, or started in another way, removes what an earlier one made."""
    root, proc = machine(tmp_path, procs="", unit="nsml-agent.service", own="agent")
    beside = machine_unit(tmp_path, "nsml-replicas.service", procs="")
    for unit in ("", beside.name):
        find_base("nsml-x", trial, unit=unit, root=root, proc=proc)
    made = {str(one) for one in Path(root).rglob("nsml-x")}
    assert {str(beside / "nsml-x"), f"{root}/nsml-agent.service/nsml-x"} <= made
    places = places_of("nsml-x", unit=beside.name, root=root, proc=proc)
    assert made <= {*places}
    remove_empty(places)
    assert not [*Path(root).rglob("nsml-x")]


def test_a_process_that_cannot_be_seen_is_not_moved(tmp_path: Path) -> None:
    """Its id reads as 0, which to the kernel means whoever writes it."""
    root, proc = machine(tmp_path, procs="", unit="nsml-agent.service", own="agent")
    waits = machine_unit(tmp_path, "nsml-replicas.service", procs="0\n")
    find_base("nsml-x", trial, unit=waits.name, root=root, proc=proc)
    assert not (waits / "nsml-x").exists()
    assert Path(root, "nsml-agent.service", "nsml-x").is_dir()


def test_a_group_without_controllers_is_said_to_have_none(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, procs=f"{os.getpid()}\n", passed="")
    base, reason = find_base("nsml-x", lambda: pytest.fail("tried"), root=root, proc=proc)
    assert base is None
    assert f"{root}/unit: it passes on none of memory, pids, cpu" in reason
    assert Path(root, "nsml-x").is_dir() == (os.geteuid() == 0)


def test_without_any_hierarchy_there_is_none_and_why(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("")
    (tmp_path / "mountinfo").write_text("22 1 0:20 / / rw - ext4 /dev/sda1 rw\n")
    found = find_base("nsml-x", lambda: pytest.fail("tried"), root="/none", proc=str(tmp_path))
    assert found == (None, "no control groups are mounted")
