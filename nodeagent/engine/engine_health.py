"""Whether an engine can start a container of an image at all: it reads files of the image itself, as root.

To find a container's user it opens the image's files of names. A named pipe there has it wait for a writer for
good: the container can then neither be inspected nor removed. A device or an enormous file takes its memory.
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
"""Bytes of such a file that an engine is left to read."""
_FACTS: Final = "X-Docker-Container-Path-Stat"
_LINK: Final = 1 << 27
_NO_FILE: Final = 0x8F280000
"""Bits of a mode as Go has it: folder, link, device, pipe, socket, or else irregular."""


def refuse_unsound(engine: Engine, container: str) -> None:
    """Raise EngineRefused for a container, not started yet, whose files of names no engine may read."""
    for path in NAMES:
        facts = facts_of(engine, container, path)
        if facts is not None and facts["mode"] & _LINK:
            # of a link the engine says where it leads in the container, through all others
            facts = facts_of(engine, container, facts["linkTarget"])
        if facts is None:
            continue
        if facts["mode"] & _NO_FILE:
            raise EngineRefused(f"its {path} is no regular file")
        if facts["size"] > MOST_READ:
            raise EngineRefused(f"its {path} has over {MOST_READ >> 20} MiB")


def facts_of(engine: Engine, container: str, path: str) -> dict[str, Any] | None:
    """What is at a path in a container, unopened: its name, size, mode, linkTarget. None: nothing. Raises EngineError."""
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
    """Whether it is a regular file, and no link to one, of so many bytes at most."""
    return not facts["mode"] & _NO_FILE and facts["size"] <= most_bytes
