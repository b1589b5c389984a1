"""Files of names in /etc of a replica.

/etc/passwd and /etc/group are those of its system, plus a line for the session's user: programs look up their user
there (git, ssh, getpass.getuser). Without a network, /etc/hosts has the replica itself alone, and no resolver is named.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.network.rules import hosts_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.folders import ReplicaFolder

_NAME = "nsml"
_FILES: Final = ("/etc/passwd", "/etc/group")


def names_file(folder: ReplicaFolder, path: str) -> Path:
    """Return the replica's file for one of /etc."""
    return folder.path / path.rpartition("/")[2]


def write_names(
    folder: ReplicaFolder, contents: Mapping[str, bytes], uid: int, gid: int
) -> Mapping[str, Path]:
    """Write the files of a replica, from those of its system; return their places by path. Raises OSError."""
    for path, content in contents.items():
        names_file(folder, path).write_bytes(with_session(path, content, uid, gid))
        names_file(folder, path).chmod(0o644)
    return {path: names_file(folder, path) for path in contents}


def write_hosts(folder: ReplicaFolder) -> Mapping[str, Path]:
    """Write /etc/hosts and /etc/resolv.conf of a replica without a network; return their places. Raises OSError."""
    hosts = hosts_file("", socket.gethostname())
    places = {}
    for path, text in {"/etc/hosts": hosts, "/etc/resolv.conf": ""}.items():
        place = places[path] = names_file(folder, path)
        place.write_text(text)
        place.chmod(0o644)
    return places


def machines_names() -> Mapping[str, bytes]:
    """Return this machine's files."""
    found = {}
    for path in _FILES:
        with suppress(OSError):
            found[path] = Path(path).read_bytes()
    return found


def with_session(path: str, content: bytes, uid: int, gid: int) -> bytes:
    """Return an /etc/passwd or /etc/group with a line for the session's user at its end.

    The system's lines are not parsed: one with the same id is found first, and keeps its name.
    """
    own = f"{_NAME}:x:{gid}:" if path == "/etc/group" else f"{_NAME}:x:{uid}:{gid}::/tmp:/bin/sh"
    between = b"" if not content or content.endswith(b"\n") else b"\n"
    return b"%b%b%b\n" % (content, between, own.encode())
