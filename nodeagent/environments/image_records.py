"""What an agent notes of images: which it pulled or made, when each was last used, the packages of those it made.

```
<folder>/<key>.json      an image that the agent pulled, or made or found made; its mtime is the last use
<folder>/<key>.packages  the id of an image that it made, and the lock of what that has
<folder>/<key>.about     whose that image is, how many packages it has, and how much of it is its base
```

The engine keeps when a derived image was last used by any of its agents.
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
"""How often the engine is told that an image is still used: it tells all who listen to its events."""
_ABOUT_TO_START_S = 600.0
"""So long another agent may take from its last look at an image to its container, which keeps it."""


class ImageRecords:
    """The notes of one agent in `folder`. Blocking; safe from many threads."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._folder = folder
        self._engine = engine
        self._noted_at: dict[str, float] = {}

    def all_keys(self) -> list[str]:
        """Of all images on record."""
        return [record.stem for record in self._folder.glob("*.json")]

    def has(self, key: str) -> bool:
        """Whether an image is on record."""
        return self._path(key).exists()

    def read(self, key: str) -> dict[str, str]:
        """What is noted of an image; records of earlier versions have no `id` and no `pulled_at` (Unix seconds)."""
        with suppress(FileNotFoundError):
            return dict(json.loads(self._path(key).read_bytes()))
        return {}

    def reference(self, key: str) -> str:
        """By which the image is removed."""
        return self.read(key).get("reference", tag_of(key))

    def remember(self, key: str, reference: str, image_id: str | None = None) -> None:
        """Note an image; with its id where the agent has just pulled it."""
        record = (
            {"reference": reference}
            if image_id is None
            else {"reference": reference, "id": image_id, "pulled_at": f"{time.time():.3f}"}
        )
        content = json.dumps(record).encode()
        write_atomically(self._path(key), content, is_durable=True)

    def touch(self, key: str) -> None:
        """It is used now."""
        if time.monotonic() >= self._noted_at.get(key, 0.0) + _NOTE_EVERY_S:
            with suppress(EngineError):
                self.note_use(key)
        # by the clock that the engine has: the one that files get by themselves lags behind it
        now = time.time_ns()
        with suppress(FileNotFoundError):
            os.utime(self._path(key), ns=(now, now))

    def note_use(self, key: str) -> None:
        """Tell other agents, by the engine, that a derived image is used; nothing where there is none."""
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
        """Whether the image is the one that this agent pulled under that name, not another since."""
        record = self.read(key)
        return bool(record) and record.get("id", image.id) == image.id

    def is_renamed(self, key: str) -> bool:
        """Whether somebody gave the name of what this agent pulled to an image of their own."""
        if "id" not in (record := self.read(key)):
            return False
        image = find_image(self._engine, record["reference"])
        return image is not None and image.id != record["id"]

    def remember_packages(
        self, key: str, image: StoredImage, lock: str, about: Mapping[str, object]
    ) -> None:
        """Note the lock of an image that the agent has made, "" for none, and what `PackageImages` is to read."""
        write_atomically(self._about(key), json.dumps(about).encode())
        write_atomically(self._packages(key), f"{image.id}\n{lock}".encode())

    def packages_of(self, key: str, image: StoredImage | None) -> str:
        """The lock of the image that has the name of a derived one by now; "" where this agent did not make just that."""
        with suppress(FileNotFoundError):
            image_id, _, lock = self._packages(key).read_text().partition("\n")
            return lock if image is not None and image.id == image_id else ""
        return ""

    def forget(self, key: str) -> None:
        """The image is gone."""
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
