"""Checks that an engine can start a container of an image: it reads files of the image itself, as root.

To find a container's user it opens the image's /etc/passwd and /etc/group. A named pipe there blocks it for
ever: the container can then neither be inspected nor removed. A device or a huge file uses up its memory.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from nodeagent.engine.client import EngineRefused, NotThere, translated

if TYPE_CHECKING:
    from nodeagent.engine.client import Engine

NAMES: Final = ("/etc/passwd", "/etc/group")
MOST_READ: Final = 16 << 20
"""Largest such file that an engine may read."""
_FACTS: Final = "X-Docker-Container-Path-Stat"
_LINK: Final = 1 << 27
_NO_FILE: Final = 0x8F280000
"""Bits of a mode in Go: folder, link, device, pipe, socket, or else irregular."""


def refuse_unsound(engine: Engine, container: str) -> None:
    """Raise EngineRefused for a container, not started yet, whose NAMES no engine may read."""
    for path in NAMES:
        facts = facts_of(engine, container, path)
        if facts is not None and facts["mode"] & _LINK:
            # the engine resolves a link in the container, through all others
            facts = facts_of(engine, container, facts["linkTarget"])
        if facts is None:
            continue
        if facts["mode"] & _NO_FILE:
            raise EngineRefused(f"its {path} is no regular file")
        if facts["size"] > MOST_READ:
            raise EngineRefused(f"its {path} has over {MOST_READ >> 20} MiB")


def facts_of(engine: Engine, container: str, path: str) -> dict[str, Any] | None:
    """Return facts of a path in a container, unopened: its name, size, mode, linkTarget. None: missing. Raises EngineError."""
    api = engine.sdk.api
    try:
        with translated(engine.socket):
            answer = api.head(
                api._url("/containers/{0}/archive", container),  # noqa: SLF001 - no method asks for facts alone
                params={"path": path},
                timeout=api.timeout,
            )
            api._raise_for_status(answer)  # noqa: SLF001
    except NotThere:
        return None
    found: dict[str, Any] = json.loads(base64.b64decode(answer.headers[_FACTS]))
    return found


def is_small_file(facts: dict[str, Any], most_bytes: int) -> bool:
    """Whether it is a regular file, and no link to one, within `most_bytes`."""
    return not facts["mode"] & _NO_FILE and facts["size"] <= most_bytes
