"""An agent's records of images: pulled and built ones, their last use, and the packages of built ones.

```
<folder>/<key>.json      an image that the agent pulled, or built or found built; its mtime is the last use
<folder>/<key>.packages  the id of an image that it built, and the lock of its packages
<folder>/<key>.about     that image's owner, number of packages, and bytes of its base
```

The engine records when a derived image was last used by any of its agents.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.engine.client import EngineError
from nodeagent.engine.images import find_image, image_used_at, touch_image
from nodeagent.folders import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage

DERIVED = "nsml-env"
"""The repository of derived images; no session may name it."""
_NOTE_EVERY_S = 600.0
"""Seconds between reports of use to the engine, which passes each to all listeners to its events."""
_ABOUT_TO_START_S = 600.0
"""Maximum seconds from another agent's last check of an image to its container, which keeps it."""


class ImageRecords:
    """The records of one agent in `folder`. Blocking; thread-safe."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._folder = folder
        self._engine = engine
        self._noted_at: dict[str, float] = {}

    def all_keys(self) -> list[str]:
        """The keys of all recorded images."""
        return [record.stem for record in self._folder.glob("*.json")]

    def has(self, key: str) -> bool:
        """Whether an image is recorded."""
        return self._path(key).exists()

    def read(self, key: str) -> dict[str, str]:
        """The record of an image, or {}; those of earlier versions have no `id` and no `pulled_at` (Unix seconds)."""
        with suppress(FileNotFoundError):
            return dict(json.loads(self._path(key).read_bytes()))
        return {}

    def reference(self, key: str) -> str:
        """The name to remove the image by."""
        return self.read(key).get("reference", tag_of(key))

    def remember(self, key: str, reference: str, image_id: str | None = None) -> None:
        """Record an image; with its id if the agent has just pulled it."""
        record = (
            {"reference": reference}
            if image_id is None
            else {"reference": reference, "id": image_id, "pulled_at": f"{time.time():.3f}"}
        )
        content = json.dumps(record).encode()
        write_atomically(self._path(key), content, is_durable=True)

    def touch(self, key: str) -> None:
        """Mark it used."""
        if time.monotonic() >= self._noted_at.get(key, 0.0) + _NOTE_EVERY_S:
            with suppress(EngineError):
                self.note_use(key)
        # by the engine's clock: the kernel's own timestamps of files lag behind it
        now = time.time_ns()
        with suppress(FileNotFoundError):
            os.utime(self._path(key), ns=(now, now))

    def note_use(self, key: str) -> None:
        """Mark a derived image used on the engine, for other agents; do nothing without one."""
        touch_image(self._engine, tag_of(key))
        self._noted_at[key] = time.monotonic()

    def used_at(self, key: str) -> float:
        """When this agent last used it; 0: never."""
        with suppress(FileNotFoundError):
            return self._path(key).stat().st_mtime
        return 0.0

    def is_anothers(self, key: str) -> bool:
        """Whether another agent may be about to start it."""
        used_at = image_used_at(self._engine, tag_of(key))
        return used_at > max(self.used_at(key), time.time() - _ABOUT_TO_START_S)

    def has_pulled(self, key: str, image: StoredImage) -> bool:
        """Whether this is still the image that this agent pulled under that name."""
        record = self.read(key)
        return bool(record) and record.get("id", image.id) == image.id

    def is_renamed(self, key: str) -> bool:
        """Whether the name of an image that this agent pulled is now another image's."""
        if "id" not in (record := self.read(key)):
            return False
        image = find_image(self._engine, record["reference"])
        return image is not None and image.id != record["id"]

    def remember_packages(
        self, key: str, image: StoredImage, lock: str, about: Mapping[str, object]
    ) -> None:
        """Record the lock of an image that the agent has built, "" for none, and `about` for `PackageImages`."""
        write_atomically(self._about(key), json.dumps(about).encode())
        write_atomically(self._packages(key), f"{image.id}\n{lock}".encode())

    def packages_of(self, key: str, image: StoredImage | None) -> str:
        """The lock of `image`, which now has the name of a derived one; "" if this agent did not build it."""
        with suppress(FileNotFoundError):
            image_id, _, lock = self._packages(key).read_text().partition("\n")
            return lock if image is not None and image.id == image_id else ""
        return ""

    def forget(self, key: str) -> None:
        """Remove its records."""
        self._path(key).unlink(missing_ok=True)
        self._packages(key).unlink(missing_ok=True)
        self._about(key).unlink(missing_ok=True)
        self._noted_at.pop(key, None)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _packages(self, key: str) -> Path:
        return self._folder / f"{key}.packages"

    def _about(self, key: str) -> Path:
        return self._folder / f"{key}.about"


def tag_of(key: str) -> str:
    """The name of a derived image."""
    return f"{DERIVED}:{key}"
