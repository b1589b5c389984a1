"""Control groups of the kernel: one for each replica, below one for the agent's data folder.

Standard library only: the agent detects with `find_base` what works here, shims create the groups. Both
versions are supported, each with the controllers available here:

```
version 1    /sys/fs/cgroup/CONTROLLER/<the agent's own>/nsml-DIGEST/REPLICA    one hierarchy each
version 2    /sys/fs/cgroup/<delegated>/nsml-DIGEST/REPLICA                     one for all
```

Version 2 lets no group have both processes and controllers for those below it. Where groups of replicas are
below the group of the agent's own unit, systemd could not start the agent in that again: they are made in the
group of a unit beside it that is never restarted (`deploy/systemd/nsml-replicas.service`), whose own process
is moved into a group `agent` inside. Without that unit, an agent that was started in a group `agent` of its
own unit (`DelegateSubgroup=agent`) makes them beside that; one that is alone in another delegated group
moves to such a group itself; and one that is root otherwise uses the top of the hierarchy, where that rule
does not apply.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import time
from functools import partial

from nodeagent.shim.files import content_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypedDict

    class Base(TypedDict):
        """Parent of the groups of replicas: a folder for each working controller."""

        version: int
        folders: dict[str, str]


BUILDS = "builds"
"""Name of the group of all builds of environments, in the agent's folder."""
MEMORY, PIDS, CPU = "memory", "pids", "cpu"
CONTROLLERS = (MEMORY, PIDS, CPU)
_TIMES = "cpuacct"
"""The controller of version 1 for CPU time; version 2 needs none."""

_ROOT = "/sys/fs/cgroup"
_LEAF = "agent"
_TRIAL = "trial"
_SERVICE = ".service"
"""Suffix of a systemd unit, which starts its program in that group each time: with groups of replicas below
that use controllers, the kernel would refuse it (EBUSY; systemd reports 219/CGROUP)."""
_NONE_PASSED = f"it passes on none of {', '.join(CONTROLLERS)}"
_LONGEST_REMOVAL_S = 2.0
_PERIOD_US = 100_000
_LONGEST_PERIOD_US = 1_000_000
_LEAST_QUOTA_US = 1_000
"""The kernel's minimum."""
_NEAR_BYTES = 1 << 20
_QUOTA = "cpu.cfs_quota_us"
_FOR_ALL = 1 << 62
"""Files that use a huge number for "no limit"."""


class Entrance:
    """Open files of a group by which a process joins it and sets its processor limit.

    They are opened before the process drops the rights needed for it. The processor limit is set
    last, just before the program starts: creating the program's root would count against it, and take seconds
    with a hundredth of a core.
    """

    def __init__(self) -> None:
        self.member_files: list[int] = []
        self.cpu_limit: tuple[int, str, str] | None = None
        """Descriptor and name of the limit's file, and the value to write."""

    def join(self, pid: int = 0) -> None:
        """Move a process into the group, 0 for the calling one. Raises OSError."""
        for descriptor in self.member_files:
            os.write(descriptor, str(pid).encode())

    def limit(self) -> None:
        """Set the processor limit of the group, if it has one. Raises OSError."""
        if self.cpu_limit is None:
            return
        descriptor, name, value = self.cpu_limit
        try:
            os.write(descriptor, value.encode())
        except OSError as error:
            # version 1 refuses more than a parent group has, which enforces its stricter limit anyway
            if error.errno != errno.EINVAL or name != _QUOTA:
                raise _not_set(name, error) from error

    def close(self) -> None:
        """Close the files in this process."""
        for descriptor in self.member_files:
            os.close(descriptor)
        if self.cpu_limit is not None:
            os.close(self.cpu_limit[0])
        self.member_files, self.cpu_limit = [], None


class Group:
    """The group of one replica. Values are 0, None or empty if it does not exist.

    Its members are processes of this machine. Numbers of version 1 and 2 mean the same.
    """

    def __init__(self, base: Base, name: str) -> None:
        self._version = base["version"]
        self._of = {
            controller: os.path.join(folder, name) for controller, folder in base["folders"].items()
        }
        self._folders = list(dict.fromkeys(self._of.values()))

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that it can limit."""
        return frozenset(self._of) - {_TIMES}

    def described(self) -> dict[str, object]:
        """Return arguments for an equal `Group`."""
        folders = {controller: os.path.dirname(folder) for controller, folder in self._of.items()}
        base = {"version": self._version, "folders": folders}
        return {"base": base, "name": os.path.basename(self._folders[0])}

    def view(self) -> dict[str, str]:
        """Return its folders for a program that sees no other group: path to folder."""
        if self._version != 1:
            return {_ROOT: self._folders[0]}
        return {os.path.join(_ROOT, controller): place for controller, place in self._of.items()}

    def make(self, *, memory_bytes: int | None, process_count: int | None) -> None:
        """Create it with these limits, None for none; limits without a controller are ignored.

        Its processor limit is set later, by `Entrance.limit`. Raises OSError naming the limit that failed.
        """
        for folder in self._folders:
            try:
                self._make_folder(folder)
            except FileNotFoundError:
                if self._version != 1:
                    raise
                above = os.path.dirname(folder)
                os.makedirs(above, 0o755, exist_ok=True)
                if folder == self._of.get(CPU):
                    _yield_processors(self._version, above)
                self._make_folder(folder)
        if memory_bytes is not None and MEMORY in self._of:
            self.limit_memory(memory_bytes)
        if process_count is not None and PIDS in self._of:
            self._set(PIDS, "pids.max", str(process_count))

    def _make_folder(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)

    def open_entrance(self, *, cpus: float | None) -> Entrance:
        """Open the files to join the group, and then limit it to `cpus` cores. Raises OSError."""
        entrance = Entrance()
        try:
            for folder in self._folders:
                entrance.member_files.append(_opened(folder, "cgroup.procs"))
            if cpus is not None and CPU in self._of:
                quota, period = cpu_quota(cpus)
                name, value = "cpu.max", f"{quota} {period}"
                if self._version == 1:
                    self._set(CPU, "cpu.cfs_period_us", str(period))
                    name, value = _QUOTA, str(quota)
                entrance.cpu_limit = _opened(self._of[CPU], name), name, value
        except OSError:
            entrance.close()
            raise
        return entrance

    def members(self) -> list[int]:
        """Return the pids in it."""
        found: set[int] = set()
        for folder in self._folders:
            found.update(int(word) for word in _words(folder, "cgroup.procs"))
        return sorted(found - {0})

    def kill(self) -> None:
        """SIGKILL every process in it; concurrent forks may survive."""
        for folder in self._folders:
            # a limit of 0 prevents a race against a fork bomb
            _try_write(folder, "pids.max", "0")
            # ending processes are throttled, too: with a small limit freeing memory would take long
            _try_write(folder, _QUOTA, "-1")
            _try_write(folder, "cpu.max", "max")
            _try_write(folder, "cgroup.kill", "1")
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove it if empty; False if it is not, or not allowed."""
        deadline = time.monotonic() + _LONGEST_REMOVAL_S
        for folder in self._folders:
            while not _is_removed(folder):
                # the kernel releases the last process a moment after it is seen to end
                if time.monotonic() >= deadline or self.members():
                    return False
                time.sleep(0.002)
        return True

    def kills_for_memory(self) -> int:
        """Return how many of its processes the kernel killed for lack of memory."""
        if MEMORY not in self._of:
            return 0
        name = "memory.oom_control" if self._version == 1 else "memory.events"
        return _keyed(self._of[MEMORY], name, "oom_kill").get("oom_kill", 0)

    def has_met_its_memory(self, limit: int, seen: int = 0) -> bool:
        """Whether its own `limit`, in bytes, was used up, and not the machine's memory.

        `seen` is the peak of an earlier look: an engine removes the group of an ended container.
        """
        if MEMORY not in self._of:
            return False
        # version 2 counts that; version 1 only in some kernels, but it has the peak
        if self._version != 1 and self._met_its_limit():
            return True
        return limit - max(seen, self.memory_peak()) < max(limit // 50, _NEAR_BYTES)

    def memory_peak(self) -> int:
        """Return its peak memory in bytes, including the kernel's cache of its files."""
        if MEMORY not in self._of:
            return 0
        folder = self._of[MEMORY]
        if self._version == 1:
            return _number(folder, "memory.max_usage_in_bytes")
        peak = _number(folder, "memory.peak")
        # before Linux 5.19 version 2 has no peak; but after reaching its limit that is the peak
        if not peak and self._met_its_limit():
            return _number(folder, "memory.max")
        return peak

    def memory_used(self) -> int:
        """Return its current unreclaimable memory in bytes: without file cache."""
        if MEMORY not in self._of:
            return 0
        names = ("total_rss", "total_shmem") if self._version == 1 else ("anon", "shmem")
        return sum(_keyed(self._of[MEMORY], "memory.stat", *names).values())

    def took_s(self) -> float | None:
        """Return its processor time so far in seconds; None without a controller that counts it."""
        if self._version != 1:
            parts = _keyed(self._folders[0], "cpu.stat", "usage_usec")
            return parts["usage_usec"] / 1e6 if "usage_usec" in parts else None
        # controllers of one hierarchy share a folder
        for folder in self._folders:
            if words := _words(folder, "cpuacct.usage"):
                return int(words[0]) / 1e9
        return None

    def memory_peak_held(self) -> int:
        """Return `memory_peak` without the present file cache, in bytes: about the peak of processes."""
        cached = self._of_memory("total_cache", "file") - self._of_memory("total_shmem", "shmem")
        return max(self.memory_peak() - cached, 0)

    def cpu_s(self) -> tuple[float, float]:
        """Return its user and system CPU time so far, in seconds."""
        if _TIMES not in self._of:
            return 0.0, 0.0
        if self._version != 1:
            parts = _keyed(self._of[_TIMES], "cpu.stat", "user_usec", "system_usec")
            return parts.get("user_usec", 0) / 1e6, parts.get("system_usec", 0) / 1e6
        whole = _number(self._of[_TIMES], "cpuacct.usage") / 1e9
        ticks = _keyed(self._of[_TIMES], "cpuacct.stat", "user", "system")
        user, system = ticks.get("user", 0), ticks.get("system", 0)
        # only the sum is exact
        share = user / (user + system) if user + system else 1.0
        return whole * share, whole * (1 - share)

    def refused_forks(self) -> int:
        """Return how many forks and threads it was refused."""
        if PIDS not in self._of:
            return 0
        return _keyed(self._of[PIDS], "pids.events", "max").get("max", 0)

    def _met_its_limit(self) -> bool:
        """In version 2: whether its own limit refused it memory."""
        return _keyed(self._of[MEMORY], "memory.events", "oom").get("oom", 0) > 0

    def _of_memory(self, in_first: str, in_second: str) -> int:
        """Return a part of its current memory, by the names in version 1 and 2."""
        if MEMORY not in self._of:
            return 0
        name = in_first if self._version == 1 else in_second
        return _keyed(self._of[MEMORY], "memory.stat", name).get(name, 0)

    def limit_memory(self, limit: int, *, ends_all: bool = True) -> None:
        """Limit its memory and that of groups below it. Raises OSError.

        `ends_all`: out of memory, the kernel kills the whole group if it can, not one process.
        """
        if self._version == 1:
            _try_write(self._of[MEMORY], "memory.use_hierarchy", "1")
            self._set(MEMORY, "memory.limit_in_bytes", str(limit))
            # swap would add to the limit; not every kernel counts it
            _try_write(self._of[MEMORY], "memory.memsw.limit_in_bytes", str(limit))
        else:
            self._set(MEMORY, "memory.max", str(limit))
            _try_write(self._of[MEMORY], "memory.swap.max", "0")
            if ends_all:
                _try_write(self._of[MEMORY], "memory.oom.group", "1")

    def _set(self, controller: str, name: str, value: str) -> None:
        try:
            _write(self._of[controller], name, value)
        except OSError as error:
            raise _not_set(name, error) from error


def _not_set(name: str, error: OSError) -> OSError:
    reason = os.strerror(error.errno or 0)
    return OSError(error.errno, f"{name} of its control group: {reason}")


def cpu_quota(cpus: float) -> tuple[int, int]:
    """Return quota and period in microseconds for `cpus` cores."""
    period = _PERIOD_US if cpus * _PERIOD_US >= _LEAST_QUOTA_US else _LONGEST_PERIOD_US
    return max(round(cpus * period), _LEAST_QUOTA_US), period


def group_of_process(
    pid: int, *, root: str = "/sys/fs/cgroup", proc: str = "/proc/self"
) -> Group | None:
    """Return the group of a process, made by an engine; None if none is visible.

    `proc` is this process, for its mounts; `pid` is found in the same folder.
    """
    own = _own_groups(os.path.join(os.path.dirname(proc), str(pid)))
    places: dict[str, str | None] = {}
    for controller in (*CONTROLLERS, _TIMES):
        mount = _mount_of(proc, root, "cgroup", controller)
        if mount is not None and controller in own:
            places[controller] = _found(mount, own[controller])
    mount = _mount_of(proc, root, "cgroup2", "")
    is_first = bool(places)
    if not is_first and mount is not None and "" in own and own[""] != "/":
        place = _found(mount, own[""])
        passed = _words(place, "cgroup.controllers") if place else []
        places = {_TIMES: place} | {one: place for one in CONTROLLERS if one in passed}
    folders = {controller: place for controller, place in places.items() if place}
    names = {os.path.basename(folder) for folder in folders.values()}
    if len(names) != 1:
        return None  # it has no group of its own in each hierarchy
    above = {controller: os.path.dirname(folder) for controller, folder in folders.items()}
    return Group({"version": 1 if is_first else 2, "folders": above}, names.pop())


def find_base(
    name: str,
    start: Callable[[], int],
    *,
    unit: str = "",
    root: str = "/sys/fs/cgroup",
    proc: str = "/proc/self",
) -> tuple[Base | None, str]:
    """Find where groups can be created, by a trial, with the reason if not, or not for every controller.

    `name`: the agent's own folder of groups; `start` starts a process for the trial, which
    ends when killed, and returns its pid. `unit`: the systemd unit for them beside the agent's own,
    in version 2; empty: none. `root`: where hierarchies are mounted.
    """
    reasons: list[str] = []
    bases: list[Base] = []
    for make in (_first_version_base, partial(_second_version_base, unit)):
        try:
            base = make(name, root, proc)
        except OSError as error:
            reasons.append(str(error))
            continue
        if base["folders"]:
            bases.append(base)
    # machines with both have the controllers in one of them
    for base in bases:
        working = _tried(base, start, reasons)
        if working["folders"]:
            if CPU in working["folders"]:
                _yield_processors(working["version"], working["folders"][CPU])
            missing = [one for one in CONTROLLERS if one not in working["folders"]]
            return working, "; ".join(reasons) if missing else ""
    return None, "; ".join(dict.fromkeys(reasons)) or "no control groups are mounted"


def parent_group(base: Base, name: str, *, memory_bytes: int) -> Base:
    """Create a parent of groups that use at most `memory_bytes` together; return their base.

    Raises OSError.
    """
    folders = {one: os.path.join(folder, name) for one, folder in base["folders"].items()}
    for folder in dict.fromkeys(folders.values()):
        if base["version"] == 1:
            os.makedirs(os.path.dirname(folder), 0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
        if base["version"] != 1:
            _pass_on(folder, [one for one in CONTROLLERS if one in folders])
    if MEMORY in folders:
        Group(base, name).limit_memory(memory_bytes, ends_all=False)
    return {"version": base["version"], "folders": folders}


def names_in(base: Base) -> list[str]:
    """Return the groups of replicas, including those of dead agents."""
    found: dict[str, None] = {}
    for folder in base["folders"].values():
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found.update((one.name, None) for one in entries if one.is_dir(follow_symlinks=False))
    found.pop(BUILDS, None)
    return sorted(found)


def places_of(
    name: str, *, unit: str = "", root: str = "/sys/fs/cgroup", proc: str = "/proc/self"
) -> list[str]:
    """Return all folders that `find_base` of any agent may have created for this name."""
    above = [place for _, place in _first_version_places(root, proc)]
    above.extend(place for place, _ in _second_version_places(unit, root, proc))
    return [os.path.join(place, name) for place in dict.fromkeys(above)]


def remove_empty(folders: Iterable[str]) -> None:
    """Remove those of these folders that have no group of a replica or build left."""
    for folder in folders:
        _is_removed(os.path.join(folder, BUILDS))
        _is_removed(folder)


def _tried(base: Base, start: Callable[[], int], reasons: list[str]) -> Base:
    """Return the working part of `base`: a process is put into a group with limits, listed, and killed."""
    working: dict[str, str] = {}
    for controller, folder in base["folders"].items():
        one: Base = {"version": base["version"], "folders": {controller: folder}}
        group = Group(one, _TRIAL)
        try:
            _try_group(group, start)
            working[controller] = folder
        except OSError as error:
            reasons.append(f"{controller}: {error}")
        finally:
            group.kill()
            group.remove()
    return {"version": base["version"], "folders": working}


def _yield_processors(version: int, folder: str) -> None:
    """Give all groups below `folder` together a quarter of the weight of another group, such as the platform's own.

    It counts only where programs want more processors than there are: an agent and a control plane on the same
    machine must go on then.
    """
    name, weight = ("cpu.shares", "256") if version == 1 else ("cpu.weight", "25")
    _try_write(folder, name, weight)


def _try_group(group: Group, start: Callable[[], int]) -> None:
    group.make(memory_bytes=1 << 26, process_count=16)
    entrance = group.open_entrance(cpus=0.5)
    pid = start()
    try:
        entrance.join(pid)
        entrance.limit()
        if pid not in group.members():
            raise OSError(errno.ESRCH, "a process that joined is not in it")
    finally:
        entrance.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _first_version_base(name: str, root: str, proc: str) -> Base:
    """Create our folder in the agent's own group of each hierarchy of version 1."""
    folders: dict[str, str] = {}
    reasons: list[str] = []
    for controller, place in _first_version_places(root, proc):
        folder = os.path.join(place, name)
        try:
            os.makedirs(folder, 0o755, exist_ok=True)
        except OSError as error:
            reasons.append(f"{controller}: {error.strerror}")
            continue
        folders[controller] = folder
    if not folders and reasons:
        raise OSError("; ".join(reasons))
    return {"version": 1, "folders": folders}


def _first_version_places(root: str, proc: str) -> list[tuple[str, str]]:
    """Return each controller of version 1 with the agent's own group in its hierarchy."""
    own = _own_groups(proc)
    places = []
    for controller in CONTROLLERS:
        mount = _mount_of(proc, root, "cgroup", controller)
        if mount is not None and controller in own:
            places.append((controller, _inside(mount, own[controller])))
    return places


def _second_version_base(unit: str, name: str, root: str, proc: str) -> Base:
    """Create our folder where controllers can be delegated in the hierarchy of version 2."""
    reasons = []
    for place, empty in _second_version_places(unit, root, proc):
        try:
            return _delegated(place, name, empty)
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    if reasons:
        raise OSError("; ".join(reasons))
    return {"version": 2, "folders": {}}


def _second_version_places(
    unit: str, root: str, proc: str
) -> list[tuple[str, Callable[[str], None]]]:
    """Return possible parents of our folder in version 2, the best first, each with the function that empties it."""
    mount = _mount_of(proc, root, "cgroup2", "")
    own = _own_groups(proc).get("")
    if mount is None or own is None:
        return []
    place, top = _inside(mount, own), mount[1]
    if os.path.basename(place) == _LEAF:
        place = os.path.dirname(place)
    places: list[tuple[str, Callable[[str], None]]] = [(place, _leave)]
    if unit and place != top:
        places.insert(0, (os.path.join(os.path.dirname(place), unit), _clear))
    if os.geteuid() == 0 and place != top:
        places.append((top, _leave))
    return places


def _delegated(place: str, name: str, empty: Callable[[str], None]) -> Base:
    """Enable controllers for groups below `place/name`. Raises OSError."""
    if not os.path.isdir(place):
        raise OSError("there is no such control group: its unit does not run")
    wanted = [one for one in CONTROLLERS if one in _words(place, "cgroup.controllers")]
    if not wanted:
        raise OSError(_NONE_PASSED)
    if set(wanted) - set(_words(place, "cgroup.subtree_control")):
        if os.path.exists(os.path.join(place, "cgroup.type")):
            empty(place)
        _pass_on(place, wanted)
    folder = os.path.join(place, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
    _pass_on(folder, wanted)
    passed = set(wanted) & set(_words(folder, "cgroup.subtree_control"))
    if not passed:
        raise OSError(_NONE_PASSED)
    return {"version": 2, "folders": {one: folder for one in wanted if one in passed}}


def _leave(place: str) -> None:
    """Move this process, the only one in `place`, into a group inside. Raises OSError."""
    inside = set(_words(place, "cgroup.procs"))
    if inside - {str(os.getpid())}:
        raise OSError(errno.EBUSY, "other processes are in the agent's control group")
    if inside and place.endswith(_SERVICE):
        raise OSError(errno.EBUSY, "once replicas ran there, its unit could not be started again")
    _clear(place)


def _clear(place: str) -> None:
    """Move the processes of `place` itself into a group inside. Raises OSError."""
    leaf = os.path.join(place, _LEAF)
    with contextlib.suppress(FileExistsError):
        os.mkdir(leaf, 0o755)
    for pid in _words(place, "cgroup.procs"):
        if pid == "0":  # the kernel would read it as this process
            raise OSError(errno.EBUSY, "a process that cannot be seen from here is in it")
        _write(leaf, "cgroup.procs", pid)


def _pass_on(folder: str, controllers: Iterable[str]) -> None:
    """Enable controllers one by one: a machine may refuse one of them."""
    for controller in controllers:
        _try_write(folder, "cgroup.subtree_control", f"+{controller}")


def _own_groups(proc: str) -> dict[str, str]:
    """Return the group of a process in the hierarchy of each controller; version 2's under ""."""
    own: dict[str, str] = {}
    for line in _text(f"{proc}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _mount_of(proc: str, root: str, kind: str, option: str) -> tuple[str, str] | None:
    """Return the mounted part of a hierarchy and its mount point; with `option`, if not empty."""
    for line in _text(f"{proc}/mountinfo").splitlines():
        mount, _, rest = line.partition(" - ")
        filesystem, _, options = rest.split(" ", 2)
        part, point = mount.split(" ")[3:5]
        if filesystem != kind or not (point == root or point.startswith(root + "/")):
            continue
        if not option or option in options.split(","):
            return part, point
    return None


def _inside(mount: tuple[str, str], path: str) -> str:
    """Return the folder of the group `path`; the mount's top if it is outside of the mount."""
    return _found(mount, path) or mount[1]


def _found(mount: tuple[str, str], path: str) -> str | None:
    """Return the folder of the group `path`; None if it is not visible from here."""
    part, point = mount
    if part != "/" and (path == part or path.startswith(part + "/")):
        path = path[len(part) :]
    place = os.path.join(point, path.lstrip("/")).rstrip("/")
    return place if ".." not in path and os.path.isdir(place) else None


def _is_removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _text(path: str) -> str:
    """Return the content of a file; empty if unreadable."""
    try:
        return content_of(path).decode(errors="surrogateescape")
    except OSError:
        return ""


def _words(folder: str, name: str) -> list[str]:
    return _text(os.path.join(folder, name)).split()


def _number(folder: str, name: str) -> int:
    words = _words(folder, name)
    return int(words[0]) if words and words[0].isdigit() and int(words[0]) < _FOR_ALL else 0


def _keyed(folder: str, name: str, *wanted: str) -> dict[str, int]:
    """Return the numbers of the wanted words, from a file with a word and its number in each line."""
    words = _words(folder, name)
    pairs = itertools.pairwise(words)
    return {key: int(value) for key, value in pairs if key in wanted and value.isdigit()}


def _opened(folder: str, name: str) -> int:
    # never O_CREAT: files that the kernel lacks are not created
    return os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC)


def _write(folder: str, name: str, value: str) -> None:
    descriptor = _opened(folder, name)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _try_write(folder: str, name: str, value: str) -> None:
    with contextlib.suppress(OSError):
        _write(folder, name, value)
