"""What was downloaded for each user, kept for their further builds and for nobody else's.

```
<agent data>/downloads/<digest of the user's id>/    see `kept.py`; its mtime is the last build that left it
```

A build has the folder while it lasts, and a second one of the same user meanwhile none; who poisons one
poisons their own. Folders of earlier versions are found by nobody, and go with the others while the disk is
short of room.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.safe_paths import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Downloads:
    """The downloads below `folder`: a `Cache` of `eviction.py`. Blocking."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, owner: str) -> Path:
        """Where those of a user are, by id."""
        return self.folder / hashlib.sha256(f"uv {owner}".encode()).hexdigest()[:32]

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        found = {}
        for place in self.folder.glob("[0-9a-f]*"):
            with suppress(FileNotFoundError):  # a build has it now
                found[place.name] = place.stat().st_mtime
        return found

    def touch(self, key: str) -> None:
        """Nothing: builds note their use by what they leave."""

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove one; a build that uses it has it elsewhere."""
        del is_used
        remove_tree(self.folder / key)
        return True
