"""The replica folder: the contract between agent, shim and SDK, as paths.

```
<agent data>/replicas/<session id>.<attempt>.<rank>/     mode 0700; 0710 with the group of its account
    spec.json    the shim's input                        agent writes, atomically, 0600
    shim.json    the shim's claim                        shim writes, atomically, once per replica
    group.json   the control group of its container      shim writes, atomically, if it is visible
    output       stdout and stderr; the byte offset identifies log text
    log.records  metrics out of the log                  agent writes, in the format of the SDK's record files
    exit.json    the exit record                         shim writes, atomically and durably, last
    .reserve     space for exit.json on a full disk      shim reserves it at its start
    stop.json    the order {reason, grace_s, notice_s}   agent writes, then signals the shim
    ssh_host_key the private host key of its ssh server  agent writes at the first connection, 0600
    requirements the name of the file with its packages  agent writes, before it starts
    left         its program's files have been noted     agent writes, before it removes app/
    result       which artifact is its result, if nothing else of it is sent    agent writes, before it sends that
    contact      its mtime moves while the agent has contact with the control plane
    app/         the session's working copy of its code  seen as /app
    tmp/         private scratch space                   seen as /tmp
    root/        where the shim builds a namespace's root (always empty from outside)
    kept/        checkpoints that the program cannot change any more: sealed_checkpoints.py
    run/         user code's files for the agent         seen as /nsml
        spool/   record files of the SDK: <writer>.records, and counts of lost ones: <writer>.lost
        checkpoints/  artifacts too: <number>-%artifact, numbered from 0 for remaining files
        media/   media files, which the agent sends and removes
        notice.json, resumable.json, left.json   saving on notice: shim/save_notice.py
        socket   the agent listens: requests only
        tunnel/  the program listens: one socket a service
```

Everything under `run/`, `app/` and `tmp/` belongs to the user: read it only without following links,
and, where it is read with more rights than the user has, only what belongs to the owner of `run/`.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from nodeagent.safe_paths import give, open_folder, remove_tree
from nsml._frames import LOST_BYTES

FIRST_LOST = "1.lost"
HOSTFILE = "hostfile"
"""The first writer's count of its lost records."""
_REPLICA = re.compile(r"(s[a-z2-7]{16})\.([1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_PRIVATE = 0o700
_PASSABLE = 0o710
_REMOVED = ".removed-"
_libc = ctypes.CDLL(None, use_errno=True)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ReplicaId:
    """The id of a replica: attempts count from 1, ranks from 0. Its text names folders and processes."""

    session_id: str
    attempt: int
    rank: int

    def __post_init__(self) -> None:
        """Refuse unparsable ids, since the text becomes a path."""
        if not _REPLICA.fullmatch(str(self)):
            raise ValueError(f"not a replica id: {str(self)!r}")

    def __str__(self) -> str:
        return f"{self.session_id}.{self.attempt}.{self.rank}"

    @classmethod
    def of_no_session(cls) -> ReplicaId:
        """Return a unique id for the agent's own programs: trials, builds."""
        name = base64.b32encode(os.urandom(10)).decode().lower()
        return cls(session_id=f"s{name}", attempt=1, rank=0)

    @classmethod
    def parse(cls, text: str) -> ReplicaId | None:
        """Parse an id, or return None."""
        found = _REPLICA.fullmatch(text)
        if found is None:
            return None
        return cls(session_id=found[1], attempt=int(found[2]), rank=int(found[3]))


@dataclass(frozen=True, slots=True)
class ReplicaFolder:
    """The paths inside one replica's folder."""

    path: Path

    @property
    def uses(self) -> Path:
        """Its needs of the node's environments and images."""
        return self.path / "uses"

    @property
    def spec(self) -> Path:
        """The shim's input."""
        return self.path / "spec.json"

    @property
    def shim(self) -> Path:
        """The shim's claim: pid, start ticks, boot id, child."""
        return self.path / "shim.json"

    @property
    def group(self) -> Path:
        """The control group of its container, made by an engine."""
        return self.path / "group.json"

    @property
    def output(self) -> Path:
        """Standard output and error of the program, as bytes."""
        return self.path / "output"

    @property
    def log_records(self) -> Path:
        """Metrics out of the log."""
        return self.path / "log.records"

    @property
    def exit(self) -> Path:
        """The exit record."""
        return self.path / "exit.json"

    @property
    def stop(self) -> Path:
        """The agent's stop order."""
        return self.path / "stop.json"

    @property
    def ssh_host_key(self) -> Path:
        """The private half of its host key; missing before the first connection."""
        return self.path / "ssh_host_key"

    @property
    def requirements(self) -> Path:
        """The name of the file with its packages; missing without one."""
        return self.path / "requirements"

    @property
    def left(self) -> Path:
        """Exists once all of the program's remaining files are noted, so that they are not searched after they were moved."""
        return self.path / "left"

    @property
    def result(self) -> Path:
        """The folder of the artifact that alone is sent of a sealed session, as its record names it."""
        return self.path / "result"

    @property
    def contact(self) -> Path:
        """Touched at each contact with the control plane."""
        return self.path / "contact"

    @property
    def app(self) -> Path:
        """The working copy of the code."""
        return self.path / "app"

    @property
    def tmp(self) -> Path:
        """The replica's own scratch space."""
        return self.path / "tmp"

    @property
    def volumes(self) -> Path:
        """Its data at paths that its image declares as volumes."""
        return self.path / "volumes"

    def volume(self, number: int) -> Path:
        """The folder of one volume."""
        return self.volumes / str(number)

    @property
    def root(self) -> Path:
        """Mount point of a namespace's root."""
        return self.path / "root"

    @property
    def run(self) -> Path:
        """Files of user code for the agent."""
        return self.path / "run"

    @property
    def spool(self) -> Path:
        """Record files of the SDK."""
        return self.run / "spool"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints as the SDK saved them."""
        return self.run / "checkpoints"

    @property
    def kept(self) -> Path:
        """Checkpoints owned by the agent."""
        return self.path / "kept"

    @property
    def socket(self) -> Path:
        """The agent's socket for requests of the SDK."""
        return self.run / "socket"

    @property
    def tunnel(self) -> Path:
        """The program's sockets, one a service."""
        return self.run / "tunnel"

    def create(self) -> None:
        """Create the folder and its permanent contents; existing ones are unchanged."""
        for part in (self.path, self.app, self.tmp, self.root, self.run):
            part.mkdir(mode=_PRIVATE, parents=part is self.path, exist_ok=True)
        for part in (self.checkpoints, self.tunnel):
            part.mkdir(mode=_PRIVATE, exist_ok=True)
        if not self.spool.exists():
            self._make_spool()
        self.contact.touch(mode=0o600)
        self.output.touch(mode=0o600)

    def _make_spool(self) -> None:
        """Reserve space for the first program's count of lost records, also for a full disk.

        The file has that space or does not exist: on a full disk this is repeated.
        """
        draft = self.run / ".spool"
        draft.mkdir(mode=_PRIVATE, exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        with open_folder(self.path, (self.run.name, draft.name)) as spool:
            with suppress(FileNotFoundError):
                os.unlink(FIRST_LOST, dir_fd=spool)
            descriptor = os.open(FIRST_LOST, flags, 0o600, dir_fd=spool)
            try:
                written = os.write(descriptor, b" " * LOST_BYTES)
            finally:
                os.close(descriptor)
        if written != LOST_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        draft.rename(self.spool)

    def write_hostfile(self, text: str) -> None:
        """Write the program's list of hosts; a file or link of that name is replaced."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with open_folder(self.path, (self.run.name,)) as run:
            with suppress(FileNotFoundError):
                os.unlink(HOSTFILE, dir_fd=run)
            with os.fdopen(os.open(HOSTFILE, flags, 0o644, dir_fd=run), "w") as out:
                out.write(text)

    def create_volumes(self, count: int, owner: tuple[int, int] | None) -> None:
        """Create folders for `count` volumes, for `owner` (uid, gid); existing ones are unchanged."""
        for part in (self.volumes, *map(self.volume, range(count))):
            part.mkdir(mode=_PRIVATE, exist_ok=True)
        if owner is not None:
            with open_folder(self.path, []) as here:
                give(self.volumes.name, here, *owner)

    def give(self, uid: int, gid: int) -> None:
        """Change the owner of the program's files to `uid`, including its log: it may open that by name.

        All else stays the agent's. Group `gid` can pass the folder, but not list it.
        """
        with open_folder(self.path, []) as here:
            for part in (self.app, self.tmp, self.run, self.output):
                give(part.name, here, uid, gid)
            os.fchown(here, -1, gid)
            os.fchmod(here, _PASSABLE)

    def touch_contact(self) -> None:
        """Record a contact with the control plane (the `lost_after` watch starts again)."""
        os.utime(self.contact)

    def free(self) -> None:
        """Delete files that only the program needed, after its end; idempotent, follows no link."""
        for part in (self.app, self.tmp, self.volumes):
            remove_tree(part)

    def remove(self) -> None:
        """Delete the folder with all files of user code; idempotent, follows no link."""
        doomed = self.path.with_name(f"{_REMOVED}{self.path.name}")
        if self.path.exists():
            remove_tree(doomed)
            # programs of the same user that still run must not enter it any more
            self.path.chmod(_PRIVATE)
            self.path.rename(doomed)
        remove_tree(doomed)


@dataclass(frozen=True, slots=True)
class ReplicaFolders:
    """All replica folders of one agent: `<agent data>/replicas`."""

    path: Path

    def create(self) -> None:
        """Create the folder, private to the agent, and finish removals of a dead agent."""
        self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        for left in self.path.glob(f"{_REMOVED}*"):
            try:
                remove_tree(left)
            except OSError as error:
                # One unremovable folder must not stop the agent.
                log.warning("replica.not_removed", folder=left.name, error=str(error))

    def of(self, replica_id: ReplicaId) -> ReplicaFolder:
        """Return the folder of one replica, existing or not."""
        return ReplicaFolder(self.path / str(replica_id))

    def ids(self) -> list[ReplicaId]:
        """Return the replicas with a folder, in order."""
        if not self.path.is_dir():
            return []
        names = (ReplicaId.parse(entry.name) for entry in os.scandir(self.path))
        return sorted(name for name in names if name is not None)


def staged_beside(path: Path) -> Path:
    """Return this thread's path of a file's replacement."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")


def write_atomically(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Replace `path` by `content`: a reader sees the old or the new file, never a part.

    Only if `is_durable` does that hold after a power loss, too. Of concurrent threads the last
    one wins.
    """
    staged = staged_beside(path)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(content)
        if is_durable:
            file.flush()
            os.fsync(descriptor)
    staged.replace(path)
    if is_durable:
        with open_folder(path.parent, []) as folder:
            os.fsync(folder)


def flush_filesystem(folder: Path) -> None:
    """Flush all data written to the filesystem of `folder` to its disk.

    For trees of many files, which separate flushes would delay. Raises OSError when
    the disk failed for any of it.
    """
    with open_folder(folder, []) as descriptor:
        if _libc.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
