"""The default packages of a node with containers: in an image upon the default one, and beside what code requires. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsml.packages.locks import LockRefused, read_lock, versions
from nsml.packages.requirements import name_of
from nsml.spec.images import parts_of, whole_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.engine.images import StoredImage
    from nsml.packages.requirements import Requirements

RETIRED: Final = "nsml/default_ml"
"""What NSML called its default image."""


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

    def is_part_of(self, lock: str) -> bool:
        """Whether a lock has all of its packages, so that the rest can be installed upon it."""
        try:
            ours, whole = versions(read_lock(self.lock)), versions(read_lock(lock))
        except LockRefused:
            return False
        return ours.items() <= whole.items()


def means_default(named: str, reference: str, default: str) -> bool:
    """Whether a session means the default image: it names none, or NSML's, which leads there (`reference`)."""
    if not default:
        return False
    if not named:
        return True
    return parts_of(whole_reference(named))[0] == RETIRED and reference == whole_reference(default)
