"""Rights to images that were pulled with a user's own registry login.

All users of a node share its images. One that was pulled with a user's login would be everybody's once it is here, so only
users with logins that its registry accepted may use it, until the registry serves it without one (to anybody, or with the
node's own credentials). For other users the registry is asked: it decides, as in Kubernetes' KEP-2535. Its answer for a
login expires after a day, and when the login changes.

Rights are recorded by the image's id, so they hold under each name of the image, and before anybody may use it. A repository
that serves it without a login makes it everybody's under the names of that repository alone: anybody can serve the manifest
of another's image, and the engine does not fetch layers that it has. For the same reason nothing here keeps an image from
users who know that manifest and serve it from their own registry: the engine asks no registry for what it has.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nodeagent.folders import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ASKED_AGAIN_AFTER_S: Final = 24 * 3600.0
_MOST_USERS: Final = 1000
_MOST_REPOSITORIES: Final = 1000


class ImageRights:
    """The rights of one agent's images, a file each in `folder`. Blocking; `clock` returns Unix seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock

    def is_private(self, image_id: str, repository: str) -> bool:
        """Whether names of that repository (`full_name`) are restricted to users with accepted logins."""
        path = self._path(image_id)
        return path.exists() and repository not in self._read(path)["public"]

    def has_any(self, image_id: str) -> bool:
        """Whether rights are recorded."""
        return self._path(image_id).exists()

    def private_images(self) -> dict[str, Sequence[str]]:
        """The repositories under which each image with recorded rights is everybody's, by image id."""
        found = (self._read(path) for path in self._folder.glob("*.rights"))
        return {one["id"]: one["public"] for one in found}

    def has(self, image_id: str, owner: str, version: int | None) -> bool:
        """Whether a registry accepted this user's login for a private image, within the last day."""
        given = self._read(self._path(image_id))["users"].get(owner)
        if given is None or version is None:
            return False
        age_s = self._clock() - given["at"]
        return bool(given["version"] == version and 0 <= age_s < ASKED_AGAIN_AFTER_S)

    def grant(self, image_id: str, repository: str, owner: str, version: int | None) -> None:
        """Record that a repository accepted a login for it, or, without one, that it is everybody's under that repository's names."""
        path = self._path(image_id)
        if version is None and not self.is_private(image_id, repository):
            return
        noted = self._read(path)
        users, public = noted["users"], noted["public"]
        if version is None:
            public = [*public[1 - _MOST_REPOSITORIES :], repository]
        else:
            users[owner] = {"version": version, "at": self._clock()}
        while len(users) > _MOST_USERS:
            users.pop(min(users, key=lambda one: users[one]["at"]))
        content = json.dumps({"id": image_id, "users": users, "public": public}).encode()
        write_atomically(path, content, is_durable=True)

    def withhold(self, image_id: str) -> None:
        """Let nobody use it until a registry has served it to them."""
        content = json.dumps({"id": image_id, "users": {}, "public": []}).encode()
        write_atomically(self._path(image_id), content, is_durable=True)

    def forget(self, image_id: str) -> None:
        """Remove its rights."""
        self._path(image_id).unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, Any]:
        """The record; an unreadable one gives nobody a right."""
        with suppress(FileNotFoundError, ValueError):
            found = json.loads(path.read_bytes())
            if isinstance(found, dict) and isinstance(found.get("users"), dict):
                return {"public": [], **found}
        return {"id": "", "users": {}, "public": []}

    def _path(self, image_id: str) -> Path:
        return self._folder / f"{hashlib.sha256(image_id.encode()).hexdigest()[:32]}.rights"
