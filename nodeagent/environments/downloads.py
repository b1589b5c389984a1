"""A download cache per user, for this user's builds alone.

```
<agent data>/downloads/<digest of the user's id>/    see `kept.py`; its mtime is its last use by a build
```

A build takes the folder while it runs; a concurrent one of the same user has none. Users can poison only
their own. Folders of earlier versions are never used, and are evicted with the others when the disk is
nearly full.
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
        """The folder of a user, by id."""
        return self.folder / hashlib.sha256(f"uv {owner}".encode()).hexdigest()[:32]

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        found = {}
        for place in self.folder.glob("[0-9a-f]*"):
            with suppress(FileNotFoundError):  # a build has it now
                found[place.name] = place.stat().st_mtime
        return found

    def touch(self, key: str) -> None:
        """Do nothing: builds set the mtime themselves."""

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove one; a running build has moved its own away."""
        del is_used
        remove_tree(self.folder / key)
        return True
