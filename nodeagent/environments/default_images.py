"""Default packages of a node with containers: as an image on the default one, and beside code's requirements. Pure."""

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
"""NSML's name of its default image."""
_HASH: Final = re.compile(r" --hash=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultImage:
    """An image with the packages of `lines`; `lock` is their lock, "" if unknown."""

    image: StoredImage
    lines: Sequence[str]
    lock: str

    def left_beside(self, requirements: Requirements) -> Sequence[str]:
        """The default lines for packages that `requirements` do not name, and all options."""
        named = {name_of(line) for line in requirements.lines}
        return [line for line in self.lines if line.startswith("-") or name_of(line) not in named]

    def takes(self, lock: str) -> bool:
        """Whether the image has only the lock's packages once that is installed: it names all of them, with the same files."""
        try:
            ours, theirs = _files(self.lock), _files(lock)
        except LockRefused:
            return False
        if not ours.keys() <= theirs.keys():
            return False
        # a package with the lock's version is kept: its file must match
        same = [name for name, (what, _) in ours.items() if theirs[name][0] == what]
        return all(ours[name][1] & theirs[name][1] for name in same)


def _files(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version or URL, and hashes of files, by package name. Raises LockRefused."""
    packages = read_lock(lock)
    hashes = [frozenset(_HASH.findall(line)) for line in lock.split("\n")[:-1]]
    return {one.name: (one.what, of) for one, of in zip(packages, hashes, strict=True)}


def means_default(named: str, reference: str, default: str) -> bool:
    """Whether a session uses the default image: it names none, or NSML's, resolved to it (`reference`)."""
    if not default:
        return False
    if not named:
        return True
    return parts_of(whole_reference(named))[0] == RETIRED and reference == whole_reference(default)
