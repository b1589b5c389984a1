"""Accounts of the platform's users on this machine: ids of the agent's own range, one for each.

An agent with root runs each user's sessions under a uid, and a gid of the same number, that no other
user ever gets here; trees cached for some users only have a group of their own from the same
range, reused for another tree after its removal, and never for a user. Ids are stored in a file beside the journal, not in it: a damaged journal is moved away,
and the owners of files and programs must not change with that.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.folders import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FILE = "accounts.json"
_USER, _TREE, _SPARE = "user", "tree", "spare"
_OPEN, _BY_GROUP = 0o555, 0o550
_OWNERS = 0o750
_MOST_BUILDS = 256


class AccountsError(Exception):
    """Accounts cannot be used on this machine; the text gives the reason and advice."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids `first` to `first + count - 1`: those of users, then those of builds, the last for trials."""

    first: int
    count: int

    @property
    def trial(self) -> int:
        """The id for testing whether accounts work here."""
        return self.first + self.count - 1

    @property
    def builds(self) -> range:
        """Ids of builds, one each at a time: no user ever gets them. Empty in a tiny range."""
        return range(self.trial - min(_MOST_BUILDS, self.count // 8), self.trial)

    def given(self) -> Iterator[int]:
        """Yield the assignable ids, in order."""
        yield from range(self.first, self.builds.start)

    def overlap(self, passwd: str, subordinate: Mapping[str, str]) -> str:
        """Describe an id of the range that is in use, by /etc/passwd and files like /etc/subuid, as texts; "" for none."""
        for line in passwd.splitlines():
            name, *fields = line.split(":")
            if len(fields) > 1 and fields[1].isdecimal() and self._meets(int(fields[1]), 1):
                return f"{fields[1]} is the uid of {name}"
        for file, text in subordinate.items():
            for line in text.splitlines():
                name, *fields = line.split(":")
                if len(fields) == 2 and all(map(str.isdecimal, fields)):
                    first, count = map(int, fields)
                    if self._meets(first, count):
                        return f"{file} gives {first} to {first + count - 1} to {name}"
        return ""

    def _meets(self, first: int, count: int) -> bool:
        return first < self.first + self.count and self.first < first + count


class Accounts:
    """The ids assigned on this machine. Blocking except `known`; thread-safe.

    Args:
        folder: the agent's data folder, which stores them.
        ids: the range; earlier ids of another one stay assigned.
        by_group: whether trees shared by some users are protected by groups: needed where programs see
            the machine's files. In a root of its own each sees only its mounts.

    Raises:
        AccountsError: the file cannot be read.
    """

    def __init__(self, folder: Path, ids: IdRange, *, by_group: bool) -> None:
        self._path = folder / _FILE
        self._ids = ids
        self._by_group = by_group
        self._turn = threading.Lock()
        self._given = _read(self._path)

    def of_user(self, owner: str) -> int:
        """Return the uid, and gid, of a user; durably assigned when this returns.

        Raises AccountsError when all are assigned, OSError when the disk fails.
        """
        return self._of(f"{_USER}/{owner}")

    def known(self, owner: str) -> int | None:
        """Return `of_user` of a user seen before, without blocking; None for others."""
        return self._given.get(f"{_USER}/{owner}")

    def admit(self, tree: Path) -> int | None:
        """Restrict a tree of the cache to its group; return that, or None if not needed.

        Raises as `of_user`.
        """
        facts = tree.stat()
        if not self._by_group:
            if stat.S_IMODE(facts.st_mode) != _OPEN:
                tree.chmod(_OPEN)
            return None
        gid = self._of(f"{_TREE}/{tree.name}")
        if facts.st_gid != gid or stat.S_IMODE(facts.st_mode) != _BY_GROUP:
            tree.chmod(0o500)  # never with another group's rights
            os.chown(tree, -1, gid)
            tree.chmod(_BY_GROUP)
        return gid

    def release(self, *trees: str) -> None:
        """Release the groups of removed trees of the cache; OSError when the disk fails.

        Programs gain no group by leftover files with it: they cannot gain privileges.
        """
        with self._turn:
            gone = {name for one in trees if (name := f"{_TREE}/{one}") in self._given}
            if gone:
                self._keep(
                    {
                        _spare(number) if name in gone else name: number
                        for name, number in self._given.items()
                    }
                )

    def trees(self) -> set[str]:
        """Return the names of trees with groups of their own."""
        with self._turn:
            return {name.partition("/")[2] for name in self._given if name.startswith(f"{_TREE}/")}

    def keep_private(self, tree: Path, owner: str) -> None:
        """Restrict a tree to its owner, where programs see the machine's files.

        Raises as `of_user`.
        """
        if not self._by_group:
            return
        gid = self.of_user(owner)
        facts = tree.stat()
        if facts.st_gid != gid or stat.S_IMODE(facts.st_mode) != _OWNERS:
            tree.chmod(0o700)  # never with another group's rights
            os.chown(tree, -1, gid)
            tree.chmod(_OWNERS)

    def _of(self, name: str) -> int:
        with self._turn:
            if name not in self._given:
                number = self._next(name)
                others = {one: has for one, has in self._given.items() if has != number}
                self._keep({**others, name: number})
            return self._given[name]

    def _keep(self, given: dict[str, int]) -> None:
        write_atomically(self._path, json.dumps(given).encode(), is_durable=True)
        self._given = given

    def _next(self, name: str) -> int:
        if name.startswith(f"{_TREE}/"):
            for number in self._given.values():
                if _spare(number) in self._given:
                    return number
        taken = set(self._given.values())
        for number in self._ids.given():
            if number not in taken and not _is_named(number):
                return number
        last = self._ids.builds.start - 1
        raise AccountsError(
            f"all ids from {self._ids.first} to {last} are given on this node, none is left for {name}:"
            " raise uid_count in the agent's settings"
        )


def _spare(number: int) -> str:
    return f"{_SPARE}/{number}"


def build_ids(folder: Path, ids: IdRange) -> list[int]:
    """Return ids for builds on this machine: those of their part of the range that no user has, else the trial's.

    `folder` is the agent's data folder: before builds had ids of their own, users got these, too. Raises
    AccountsError when assigned ids cannot be read.
    """
    given = set(_read(folder / _FILE).values())
    free = [number for number in ids.builds if number not in given and not _is_named(number)]
    return free or [ids.trial]


def barrier(path: Path) -> str:
    """Return the first folder on the way to `path`, inclusive, that others cannot pass, or ""."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return ""


def range_on_this_machine(ids: IdRange) -> str:
    """Return why the range cannot be used here, or ""."""
    subordinate = {name: _text(Path(name)) for name in ("/etc/subuid", "/etc/subgid")}
    taken = ids.overlap(_text(Path("/etc/passwd")), subordinate)
    return f"uid_first {ids.first} with uid_count {ids.count}: {taken}" if taken else ""


def _is_named(number: int) -> bool:
    """Whether the machine has a user or a group with this id."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            look_up(number)
            return True
    return False


def _read(path: Path) -> dict[str, int]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(one, int) for one in content.values()):
        raise AccountsError(
            f"{path} cannot be read, and says which user of this machine each session ran as:"
            " bring it back, or remove it once no session, dataset or process of those is left here"
        )
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
