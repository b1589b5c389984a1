"""Marks private images for all agents of one engine; blocking.

Each agent records who may use images pulled with logins (`environments/image_rights.py`). To the other agents of its
engine such an image looks locally made. These marks on the engine keep them from using it:

```
nsml-private:<id>                      a further name of the image, as long as it exists
nsml-private-<repository>-<work>       an empty volume: while an image of that repository is pulled or removed, and may lack the name
```
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from nodeagent.engine.client import NotThere, translated
from nodeagent.engine.containers import BUILD_LABEL
from nodeagent.engine.images import find_image, name_image, remove_image
from nsml.spec.images import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage

PRIVATE: Final = "nsml-private"
"""The repository of these names; sessions may not use it."""


def is_private(engine: Engine, image_id: str, repository: str) -> bool:
    """Whether this image is private to some users, or is about to be. Raises EngineError.

    `repository` is the full name that it was found by, without tag and digest.
    """
    # A pulled image has the volume before the name, a removed one the name before the volume: two rounds detect both.
    return any(
        _has_volume(engine, repository) or find_image(engine, _tag(image_id)) is not None
        for _ in range(2)
    )


def is_marked_private(names: Iterable[str]) -> bool:
    """Whether one of an image's names marks it as private."""
    return any(name.startswith(f"{PRIVATE}:") for name in names)


def has_other_name(image: StoredImage) -> bool:
    """Whether it has a tag other than the private mark."""
    return any(not is_marked_private([name]) for name in image.names)


def make_private(engine: Engine, image_id: str) -> None:
    """Mark an image for all agents; no effect if it is gone. Raises EngineError."""
    with contextlib.suppress(NotThere):
        name_image(engine, image_id, _tag(image_id))


def begin(engine: Engine, repository: str, work: str, mark: str) -> None:
    """Until `end`, all images of a repository are private; `work` names the operation, `mark` the agent. Raises EngineError."""
    with translated(engine.socket):
        engine.sdk.api.create_volume(_volume(repository, work), labels={BUILD_LABEL: mark})


def end(engine: Engine, work: str, mark: str) -> None:
    """See `begin`. Raises EngineError."""
    for name in _volumes_of(engine, mark):
        if name.endswith(f"-{work}"):
            with contextlib.suppress(NotThere), translated(engine.socket):
                engine.sdk.api.remove_volume(name)


def begun(engine: Engine, mark: str) -> set[str]:
    """Return the work that an agent has begun and not ended. Raises EngineError."""
    names = _volumes_of(engine, mark)
    return {name.removeprefix(f"{PRIVATE}-").partition("-")[2] for name in names}


def remove_private(
    engine: Engine, reference: str, image_id: str = "", *, work: str, mark: str
) -> bool:
    """As `remove_image`, of one that may be private: it stays private as long as it has another name.

    `image_id`: of the image with that name, if another client may have removed it. False also if another image is based
    on it, and it stays without a name.
    """
    image = find_image(engine, reference)
    image_id = image_id if image is None else image.id
    private = _tag(image_id)
    if (image is None and not image_id) or find_image(engine, private) is None:
        return remove_image(engine, reference)
    begin(engine, full_name(reference), work, mark)
    # first, else no container would keep the image
    is_gone = remove_image(engine, private) and remove_image(engine, reference)
    make_private(engine, image_id)
    end(engine, work, mark)
    left = find_image(engine, image_id)
    return is_gone and (left is None or has_other_name(left))


def _has_volume(engine: Engine, repository: str) -> bool:
    with translated(engine.socket):
        found = engine.sdk.api.volumes(filters={"name": _volume(repository, "")})
    return bool(found["Volumes"])


def _volumes_of(engine: Engine, mark: str) -> list[str]:
    filters = {"name": f"{PRIVATE}-", "label": f"{BUILD_LABEL}={mark}"}
    with translated(engine.socket):
        found = engine.sdk.api.volumes(filters=filters)["Volumes"]
    return [one["Name"] for one in found or ()]


def _volume(repository: str, work: str) -> str:
    return f"{PRIVATE}-{hashlib.sha256(repository.encode()).hexdigest()[:32]}-{work}"


def _tag(image_id: str) -> str:
    return f"{PRIVATE}:{image_id.rpartition(':')[2]}"
