"""Who the users of the platform are on this machine: ids of the agent's own range, one for each.

An agent with root runs each user's sessions under a uid, and a gid of the same number, that nobody
else ever gets here; what it caches for some and not for all has a group of its own from the same
range, which goes to another tree once it is removed, and never to a user. Who has which is kept in a file beside the journal, not in it: a damaged journal is moved away,
and what files and programs belong to must not change with that.
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
    """Accounts cannot be given on this machine; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids `first` to `first + count - 1`: those of users, then those of builds, the last for trials."""

    first: int
    count: int

    @property
    def trial(self) -> int:
        """What the agent tries with whether accounts work here."""
        return self.first + self.count - 1

    @property
    def builds(self) -> range:
        """What builds run as, one id each at a time: no user ever gets them. Empty in a tiny range."""
        return range(self.trial - min(_MOST_BUILDS, self.count // 8), self.trial)

    def given(self) -> Iterator[int]:
        """Those that are given, in order."""
        yield from range(self.first, self.builds.start)

    def overlap(self, passwd: str, subordinate: Mapping[str, str]) -> str:
        """Who has ids of the range already, by the text of /etc/passwd and of files like /etc/subuid."""
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
    """The ids that were given on this machine. Blocking but for `known`; safe from several threads.

    Args:
        folder: the agent's data folder, where they are kept.
        ids: the range; what was given of another one before stays given.
        by_group: whether what is shared by some is kept from others by groups: where programs see
            the machine's files. In a root of its own each sees what is mounted there.

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
        """The uid, and gid, of a user; durably theirs when this returns.

        Raises AccountsError when all are given, OSError when the disk refuses.
        """
        return self._of(f"{_USER}/{owner}")

    def known(self, owner: str) -> int | None:
        """As `of_user` of one who has been here before, without blocking; None of everybody else."""
        return self._given.get(f"{_USER}/{owner}")

    def admit(self, tree: Path) -> int | None:
        """Keep a tree of the cache from whom is not in its group; None where nothing is needed.

        Raises as `of_user`.
        """
        facts = tree.stat()
        if not self._by_group:
            if stat.S_IMODE(facts.st_mode) != _OPEN:
                tree.chmod(_OPEN)
            return None
        gid = self._of(f"{_TREE}/{tree.name}")
        if facts.st_gid != gid or stat.S_IMODE(facts.st_mode) != _BY_GROUP:
            tree.chmod(0o500)  # never anybody else's group with rights
            os.chown(tree, -1, gid)
            tree.chmod(_BY_GROUP)
        return gid

    def release(self, *trees: str) -> None:
        """Give back the groups of trees of the cache that are gone; OSError when the disk refuses.

        Programs gain no group by files that were left with it: they have no way to new privileges.
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
        """Names of the trees with groups of their own."""
        with self._turn:
            return {name.partition("/")[2] for name in self._given if name.startswith(f"{_TREE}/")}

    def keep_private(self, tree: Path, owner: str) -> None:
        """Keep a tree that is `owner`'s alone from others, where programs see the machine's files.

        Raises as `of_user`.
        """
        if not self._by_group:
            return
        gid = self.of_user(owner)
        facts = tree.stat()
        if facts.st_gid != gid or stat.S_IMODE(facts.st_mode) != _OWNERS:
            tree.chmod(0o700)  # never anybody else's group with rights
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
    """What builds run as on this machine: of their part of the range what no user has, else the trial's.

    `folder` is the agent's data folder: before builds had ids of their own, users got these, too. Raises
    AccountsError when it cannot be known who has which.
    """
    given = set(_read(folder / _FILE).values())
    free = [number for number in ids.builds if number not in given and not _is_named(number)]
    return free or [ids.trial]


def barrier(path: Path) -> str:
    """The first folder on the way to `path`, itself included, that others cannot pass; "" for none."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return ""


def range_on_this_machine(ids: IdRange) -> str:
    """Why the range cannot be used here; "" when it can."""
    subordinate = {name: _text(Path(name)) for name in ("/etc/subuid", "/etc/subgid")}
    taken = ids.overlap(_text(Path("/etc/passwd")), subordinate)
    return f"uid_first {ids.first} with uid_count {ids.count}: {taken}" if taken else ""


def _is_named(number: int) -> bool:
    """Whether the machine knows a user or a group by this id."""
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
