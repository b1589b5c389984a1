"""Unfinished fetches of trees, on disk.

```
<folder>/.<digest>.staged            the manifest of the tree
<folder>/.<digest>.<N>.unfinished    files of attempt N; valid ones are moved into the next attempt
```
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nodeagent.safe_paths import remove_tree
from nodeagent.storage.reservations import Size
from nsml.content.digests import is_digest

if TYPE_CHECKING:
    from pathlib import Path

STAGED: Final = ".staged"
_UNFINISHED: Final = ".unfinished"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A partly fetched tree: its disk space, and when it was last written to."""

    takes: Size
    used_at: float


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts to fetch trees to `folder`, by digest. Blocking."""

    folder: Path

    def digests(self) -> set[str]:
        """Return the digests of trees with unfinished attempts."""
        found = {path.name.split(".")[1] for path in self.folder.glob(f".*{_UNFINISHED}")}
        return {digest for digest in found if is_digest(digest)}

    def staged(self, digest: str) -> Path:
        """Return the file of its manifest, which may be incomplete."""
        return self.folder / f".{digest}{STAGED}"

    def of(self, digest: str) -> list[Path]:
        """Return the folders of a tree's attempts, newest first."""
        found = self.folder.glob(f".{digest}.[0-9]*{_UNFINISHED}")
        return sorted(found, key=_number_of, reverse=True)

    def following(self, digest: str, earlier: list[Path]) -> Path:
        """Return the folder of the next attempt."""
        number = _number_of(earlier[0]) + 1 if earlier else 0
        return self.folder / f".{digest}.{number}{_UNFINISHED}"

    def left(self, digest: str) -> Unfinished | None:
        """Describe a tree's attempts; None without any bytes. Makes their folders writable, so files can be moved out."""
        attempts = self.of(digest)
        takes = sum(map(_taken, attempts), start=Size())
        if not takes.bytes:
            return None
        return Unfinished(takes, max(path.stat().st_mtime for path in attempts))

    def remove(self, digest: str) -> None:
        """Remove a tree's attempts and its manifest."""
        for place in (*self.of(digest), self.staged(digest)):
            remove_tree(place)


def _number_of(attempt: Path) -> int:
    return int(attempt.name.split(".")[2])


def _taken(attempt: Path) -> Size:
    """Return the disk space of an attempt, without its folders and files linked to other trees."""
    size = files = 0
    for _, _, names, here in os.fwalk(attempt):
        os.fchmod(here, 0o700)
        for name in names:
            facts = os.lstat(name, dir_fd=here)
            if facts.st_nlink == 1:
                size += min(facts.st_blocks * 512, facts.st_size)
                files += 1
    return Size.of(size, files)
