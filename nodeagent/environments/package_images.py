"""The images with packages that an agent built, as users know environments: whose they are, their size and use."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nodeagent.environments.virtualenvs import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.environments.images import Images


class PackageImages:
    """What is derived from other images here, but for what Dockerfiles make. Blocking; raises EngineError.

    `is_held` says whether a build needs the image of a key.
    """

    def __init__(self, images: Images, is_held: Callable[[str], bool]) -> None:
        self._images = images
        self._is_held = is_held

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        built = {one.stem for one in self._images.folder.glob("*.about")}
        return {key: at for key, at in self._images.derived().items() if key in built}

    def owner(self, key: str) -> str | None:
        """Whose one is that is there: see Facts."""
        found = self._about(key).get("owner")
        return found if isinstance(found, str) else None

    def facts(self, key: str) -> Facts:
        """What is known of one; `shared` is what its base has."""
        about, image = self._about(key), self._images.found(key)
        size = 0 if image is None else image.size_bytes
        return Facts(
            owner=self.owner(key),
            package_count=int(about.get("package_count", 0)),
            size=size,
            shared=min(int(about.get("base_bytes", 0)), size),
            built_at=0.0 if image is None else image.created_at,
        )

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove one that nobody uses or builds; whether it is gone."""
        return self._images.remove(key, lambda: is_used() or self._is_held(key))

    def _about(self, key: str) -> dict[str, Any]:
        """What was noted when it was built."""
        with suppress(FileNotFoundError):
            return dict(json.loads((self._images.folder / f"{key}.about").read_bytes()))
        return {}
