"""Images with packages that an agent built, shown to users as environments: owner, size and last use."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nodeagent.environments.virtualenvs import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.environments.images import Images


class PackageImages:
    """Derived images, except those from Dockerfiles. Blocking; raises EngineError.

    `is_held`: whether a build needs the image of a key.
    """

    def __init__(self, images: Images, is_held: Callable[[str], bool]) -> None:
        self._images = images
        self._is_held = is_held

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        built = {one.stem for one in self._images.folder.glob("*.about")}
        return {key: at for key, at in self._images.derived().items() if key in built}

    def owner(self, key: str) -> str | None:
        """Its owner: see Facts."""
        found = self._about(key).get("owner")
        return found if isinstance(found, str) else None

    def facts(self, key: str) -> Facts:
        """Its facts; `shared` is the size of its base."""
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
        """Remove it unless it is used or being built; whether it is gone."""
        return self._images.remove(key, lambda: is_used() or self._is_held(key))

    def _about(self, key: str) -> dict[str, Any]:
        """The record of its build, or {}."""
        with suppress(FileNotFoundError):
            return dict(json.loads((self._images.folder / f"{key}.about").read_bytes()))
        return {}
