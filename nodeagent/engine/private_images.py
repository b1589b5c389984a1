"""Which images are private, as all agents of one engine know it; blocking.

Each agent notes for itself who may use what logins pulled (`environments/image_rights.py`). To the other agents of its
engine such an image is one that somebody made on the machine. What keeps them from that is on the engine:

```
nsml-private:<id>                     a further name of the image, as long as it is here
nsml-private-<repository>-<work>      an empty volume: while an image of that repository comes or goes, and may lack the name
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
"""The repository of these names; no session may name it."""


def is_private(engine: Engine, image_id: str, repository: str) -> bool:
    """Whether an agent has, or is about to have, this image for some users alone. Raises EngineError.

    `repository` is the whole name by which it was found, without tag and digest.
    """
    # One that comes has the volume first, and one that goes the name: whichever it is, twice round shows it.
    return any(
        _has_volume(engine, repository) or find_image(engine, _tag(image_id)) is not None
        for _ in range(2)
    )


def is_marked_private(names: Iterable[str]) -> bool:
    """Whether one of an image's names says that it is private."""
    return any(name.startswith(f"{PRIVATE}:") for name in names)


def has_other_name(image: StoredImage) -> bool:
    """Whether somebody has it by a tag that does not just say that it is private."""
    return any(not is_marked_private([name]) for name in image.names)


def make_private(engine: Engine, image_id: str) -> None:
    """Tell all agents; nothing where the image is gone. Raises EngineError."""
    with contextlib.suppress(NotThere):
        name_image(engine, image_id, _tag(image_id))


def begin(engine: Engine, repository: str, work: str, mark: str) -> None:
    """Until `end`, all images of a repository are private; `work` names what happens, `mark` the agent. Raises EngineError."""
    with translated(engine.socket):
        engine.sdk.api.create_volume(_volume(repository, work), labels={BUILD_LABEL: mark})


def end(engine: Engine, work: str, mark: str) -> None:
    """See `begin`. Raises EngineError."""
    for name in _volumes_of(engine, mark):
        if name.endswith(f"-{work}"):
            with contextlib.suppress(NotThere), translated(engine.socket):
                engine.sdk.api.remove_volume(name)


def begun(engine: Engine, mark: str) -> set[str]:
    """The work that an agent has begun and not ended. Raises EngineError."""
    names = _volumes_of(engine, mark)
    return {name.removeprefix(f"{PRIVATE}-").partition("-")[2] for name in names}


def remove_private(
    engine: Engine, reference: str, image_id: str = "", *, work: str, mark: str
) -> bool:
    """As `remove_image`, of one that may be private: it stays that as long as it is here by another name.

    `image_id`: of what had that name, where somebody else may have removed it. False also where another image is built
    upon it, and it stays without a name.
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
