"""Files of an image with names of users and groups, as the engine packs them: nothing of the image is run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nodeagent.engine.client import EngineRefused, NotThere, translated
from nodeagent.engine.containers import AGENT_LABEL, BUILD_LABEL, REPLICA_LABEL, remove_container
from nodeagent.engine.images import without_meaning

if TYPE_CHECKING:
    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage

FILES: Final = ("/etc/passwd", "/etc/group")
MOST_BYTES: Final = 1 << 18


def packed_names(
    engine: Engine, image: StoredImage, *, container: str, mark: str, within_s: float
) -> dict[str, bytes]:
    """A tar archive of each of FILES, by path, as the engine wrote it; b"" where the image has none.

    Left out are those over MOST_BYTES. `container` is the name of what is made for that, and removed.
    Raises EngineError, also after `within_s`.
    """
    ends_at = time.monotonic() + within_s
    api = engine.sdk.api
    remove_container(engine, container)
    labels = {
        **without_meaning(image.labels),
        BUILD_LABEL: mark,
        AGENT_LABEL: "",
        REPLICA_LABEL: "",
    }
    try:
        with translated(engine.socket):
            made = api.create_container(
                image.id, ["true"], name=container, entrypoint=["true"],
                working_dir="/", labels=labels, network_disabled=True,
            )["Id"]  # fmt: skip
        packed = {path: _packed(engine, made, path, ends_at) for path in FILES}
    finally:
        remove_container(engine, container)
    return {path: archive for path, archive in packed.items() if archive is not None}


def _packed(engine: Engine, container: str, path: str, ends_at: float) -> bytes | None:
    archive = b""
    try:
        with translated(engine.socket):
            pieces, _ = engine.sdk.api.get_archive(container, path)
            for piece in pieces:
                archive += piece
                if len(archive) > MOST_BYTES:
                    return None
                if time.monotonic() > ends_at:
                    raise EngineRefused(f"{path} of the image was not read in time")
    except NotThere:
        return b""
    return archive
