"""Reads an image's /etc/passwd and /etc/group, packed by the engine: nothing of the image is run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nodeagent.engine.client import translated
from nodeagent.engine.containers import AGENT_LABEL, BUILD_LABEL, REPLICA_LABEL, remove_container
from nodeagent.engine.engine_health import NAMES, facts_of, is_small_file, refuse_unsound
from nodeagent.engine.images import without_meaning
from nodeagent.engine.volumes import covered_volumes

if TYPE_CHECKING:
    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage

MOST_BYTES: Final = 1 << 18


def packed_names(
    engine: Engine, image: StoredImage, *, container: str, mark: str, within_s: float
) -> dict[str, bytes]:
    """Return a tar archive of each of NAMES, by path, as packed by the engine; b"" if the image has none.

    Files over MOST_BYTES, links, and files not read `within_s` are left out. `container` is the name of a temporary
    container. Raises EngineRefused for an image of which no container may be started, EngineError.
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
                host_config=api.create_host_config(mounts=covered_volumes(image.volumes)),
            )["Id"]  # fmt: skip
        refuse_unsound(engine, made)
        packed = {path: _packed(engine, made, path, ends_at) for path in NAMES}
    finally:
        remove_container(engine, container)
    return {path: archive for path, archive in packed.items() if archive is not None}


def _packed(engine: Engine, container: str, path: str, ends_at: float) -> bytes | None:
    facts = facts_of(engine, container, path)
    if facts is None or not is_small_file(facts, MOST_BYTES):
        return b"" if facts is None else None
    archive = b""
    with translated(engine.socket):
        pieces, _ = engine.sdk.api.get_archive(container, path)
        for piece in pieces:
            archive += piece
            if len(archive) > MOST_BYTES or time.monotonic() > ends_at:
                return None
    return archive
