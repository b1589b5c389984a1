"""The default packages of a node with containers: in an image upon the default one, and beside what code requires. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsml.packages.locks import LockRefused, read_lock
from nsml.packages.requirements import name_of
from nsml.spec.images import parts_of, whole_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.engine.images import StoredImage
    from nsml.packages.requirements import Requirements

RETIRED: Final = "nsml/default_ml"
"""What NSML called its default image."""
_HASH: Final = re.compile(r" --hash=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultImage:
    """An image with the packages that `lines` ask for; `lock` is that of the packages, "" where none is known."""

    image: StoredImage
    lines: Sequence[str]
    lock: str

    def left_beside(self, requirements: Requirements) -> Sequence[str]:
        """The lines that `requirements` leave as they are: those of packages that they name count instead."""
        named = {name_of(line) for line in requirements.lines}
        return [line for line in self.lines if line.startswith("-") or name_of(line) not in named]

    def takes(self, lock: str) -> bool:
        """Whether nothing else is there once a lock is installed upon it: all packages that it has are named, by their files."""
        try:
            ours, theirs = _files(self.lock), _files(lock)
        except LockRefused:
            return False
        if not ours.keys() <= theirs.keys():
            return False
        # what has the version of the lock is kept: it must not be another file
        same = [name for name, (what, _) in ours.items() if theirs[name][0] == what]
        return all(ours[name][1] & theirs[name][1] for name in same)


def _files(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """By the name of each package its version or URL, and the hashes of its files. Raises LockRefused."""
    packages = read_lock(lock)
    hashes = [frozenset(_HASH.findall(line)) for line in lock.split("\n")[:-1]]
    return {one.name: (one.what, of) for one, of in zip(packages, hashes, strict=True)}


def means_default(named: str, reference: str, default: str) -> bool:
    """Whether a session means the default image: it names none, or NSML's, which leads there (`reference`)."""
    if not default:
        return False
    if not named:
        return True
    return parts_of(whole_reference(named))[0] == RETIRED and reference == whole_reference(default)
