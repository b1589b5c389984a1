"""What interrupted fetches of trees left on the disk.

```
<folder>/.<digest>.staged            what the tree is made of
<folder>/.<digest>.<N>.unfinished    what the Nth attempt wrote; what is right there is moved into the next one
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
    """A tree that is here in part: what that takes of the disk, and when it was last written to."""

    takes: Size
    used_at: float


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts to fetch trees to `folder`, by digest. Blocking."""

    folder: Path

    def digests(self) -> set[str]:
        """Of which trees there are some."""
        found = {path.name.split(".")[1] for path in self.folder.glob(f".*{_UNFINISHED}")}
        return {digest for digest in found if is_digest(digest)}

    def staged(self, digest: str) -> Path:
        """The file with its manifest, whole or not."""
        return self.folder / f".{digest}{STAGED}"

    def of(self, digest: str) -> list[Path]:
        """Their folders, newest first."""
        found = self.folder.glob(f".{digest}.[0-9]*{_UNFINISHED}")
        return sorted(found, key=_number_of, reverse=True)

    def following(self, digest: str, earlier: list[Path]) -> Path:
        """The folder of the next one."""
        number = _number_of(earlier[0]) + 1 if earlier else 0
        return self.folder / f".{digest}.{number}{_UNFINISHED}"

    def left(self, digest: str) -> Unfinished | None:
        """What they left, if that is of use. Files can be moved out of all folders afterwards."""
        attempts = self.of(digest)
        takes = sum(map(_taken, attempts), start=Size())
        if not takes.bytes:
            return None
        return Unfinished(takes, max(path.stat().st_mtime for path in attempts))

    def remove(self, digest: str) -> None:
        """Remove them."""
        for place in (*self.of(digest), self.staged(digest)):
            remove_tree(place)


def _number_of(attempt: Path) -> int:
    return int(attempt.name.split(".")[2])


def _taken(attempt: Path) -> Size:
    """What an attempt takes of the disk, but for its folders and for files of other trees."""
    size = files = 0
    for _, _, names, here in os.fwalk(attempt):
        os.fchmod(here, 0o700)
        for name in names:
            facts = os.lstat(name, dir_fd=here)
            if facts.st_nlink == 1:
                size += min(facts.st_blocks * 512, facts.st_size)
                files += 1
    return Size.of(size, files)
