"""Who may use images that were pulled with a user's own login at their registry.

All users of a node share its images. One that its registry gave to a user's login would be everybody's once it is here, so it
is used for those alone to whose logins the registry gave it, and for everybody from when it gave it without one (to anybody,
or with the node's own credentials). Others are sent to the registry: it decides, as in Kubernetes' KEP-2535. What it said of a
login is asked again after a day, and when the login is another one.

It is noted by the image's id, so it holds under each name of the image, and before anybody may use it. That a repository
gave it without a login makes it everybody's under the names of that repository alone: anybody can serve what describes
somebody's image, and the engine does not fetch layers that it has. For the same reason nothing here keeps an image from
users who know that description and whose own registry serves it: the engine asks no registry for what it has.
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
    """The rights of one agent's images, a file each in `folder`. Blocking; `clock` gives Unix seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock

    def is_private(self, image_id: str, repository: str) -> bool:
        """Whether under names of that repository (`full_name`) it is for users alone to whose logins it was given."""
        path = self._path(image_id)
        return path.exists() and repository not in self._read(path)["public"]

    def has_any(self, image_id: str) -> bool:
        """Whether it was given to logins."""
        return self._path(image_id).exists()

    def private_images(self) -> dict[str, Sequence[str]]:
        """All that were given to logins and not forgotten, by id: of which repositories they are everybody's."""
        found = (self._read(path) for path in self._folder.glob("*.rights"))
        return {one["id"]: one["public"] for one in found}

    def has(self, image_id: str, owner: str, version: int | None) -> bool:
        """Whether a private image was given to this login of a user, within the last day."""
        given = self._read(self._path(image_id))["users"].get(owner)
        if given is None or version is None:
            return False
        age_s = self._clock() - given["at"]
        return bool(given["version"] == version and 0 <= age_s < ASKED_AGAIN_AFTER_S)

    def grant(self, image_id: str, repository: str, owner: str, version: int | None) -> None:
        """Note that a repository gave it to a login, or, without one, that it is everybody's under names of that repository."""
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
        """Nobody may use it before a registry has given it to them."""
        content = json.dumps({"id": image_id, "users": {}, "public": []}).encode()
        write_atomically(self._path(image_id), content, is_durable=True)

    def forget(self, image_id: str) -> None:
        """The image is gone."""
        self._path(image_id).unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, Any]:
        """What is noted; what cannot be read gives nobody a right."""
        with suppress(FileNotFoundError, ValueError):
            found = json.loads(path.read_bytes())
            if isinstance(found, dict) and isinstance(found.get("users"), dict):
                return {"public": [], **found}
        return {"id": "", "users": {}, "public": []}

    def _path(self, image_id: str) -> Path:
        return self._folder / f"{hashlib.sha256(image_id.encode()).hexdigest()[:32]}.rights"
