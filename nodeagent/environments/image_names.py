"""User and group names of an image, for `whoami`, `getpass` and shell prompts in containers.

No image has the ids that sessions run as: a session's container gets the image's own files plus one line.
They are read once per image, and unpacked in the sandbox: the agent itself parses no content from an image's
maker.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import structlog

from nodeagent.engine.client import EngineRefused
from nodeagent.engine.images import stored_image
from nodeagent.engine.names import MOST_BYTES, packed_names
from nodeagent.environments import unpack_names
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.sandbox import Task, base_python, shared_copy
from nodeagent.runtimes.interface import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.engine.client import Engine
    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.sandbox import Sandbox

_MOST_IMAGES: Final = 64
_READ_WITHIN_S: Final = 60.0

log = structlog.get_logger()


class ImageNames:
    """Reads images of `engine`, each once. Blocking; thread-safe.

    `prefix`: of the names of containers made for that.
    """

    def __init__(self, engine: Engine, sandbox: Sandbox, *, prefix: str, mark: str) -> None:
        self._engine = engine
        self._sandbox = sandbox
        self._prefix = prefix
        self._mark = mark
        self._kept: OrderedDict[str, dict[str, bytes]] = OrderedDict()
        # a lock lives while a call uses it
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(
        self,
        image_id: str,
        *,
        owner: str,
        waits: Waits = lambda _: None,
        cancelled: threading.Event | None = None,
    ) -> Mapping[str, bytes]:
        """Contents of NAMES by path, without those that are no files in the image. Empty if reading fails.

        Only calls for the same image wait for each other. Raises EngineUnreachable, EnvironmentCancelled,
        and EnvironmentFailed for an image that containers must not be started from.
        """
        with self._lock:
            turn = self._turns.setdefault(image_id, threading.Lock())
        with turn:
            with self._lock:
                kept = self._kept.get(image_id)
            if kept is not None:
                return kept
            packed = self._packed(image_id)
            try:
                found = self._unpacked(packed, owner, waits, cancelled)
            except (EnvironmentFailed, OSError) as error:
                # names are optional: the next session tries again
                log.warning("image.names_unread", image=image_id, error=str(error))
                return {}
            with self._lock:
                self._kept[image_id] = found
                while len(self._kept) > _MOST_IMAGES:
                    self._kept.popitem(last=False)
            return found

    def _packed(self, image_id: str) -> Mapping[str, bytes]:
        try:
            image = stored_image(self._engine, image_id)
            return packed_names(
                self._engine,
                image,
                container=f"{self._prefix}{image.id.rpartition(':')[2][:12]}",
                mark=self._mark,
                within_s=_READ_WITHIN_S,
            )
        except EngineRefused as error:
            raise EnvironmentFailed(f"the image cannot be used: {error}") from error

    def _unpacked(
        self,
        packed: Mapping[str, bytes],
        owner: str,
        waits: Waits,
        cancelled: threading.Event | None,
    ) -> dict[str, bytes]:
        """The regular files of the archives, by path."""
        archives = {path: archive for path, archive in packed.items() if archive}
        if not archives:
            return dict(packed)
        program = shared_copy(
            self._sandbox.folder, "names", {"unpack.py": Path(unpack_names.__file__)}
        )
        names = {path: path.rpartition("/")[2] for path in archives}
        task = Task(
            argv=[
                *(str(base_python()), "-I", str(program / "unpack.py")),
                *(f"{{run}}/{name}.tar" for name in names.values()),
            ],
            mounts=[Mount(source=program, target=str(program))],
            files={f"{names[path]}.tar": archive for path, archive in archives.items()},
        )
        said = self._sandbox.ask(
            task, most=len(archives) * MOST_BYTES, owner=owner, waits=waits, cancelled=cancelled
        )
        *parts, rest = said.split(b"\0")
        if len(parts) != len(archives) or rest:
            raise EnvironmentFailed("the image's user and group names were read incompletely")
        files = dict(zip(archives, parts, strict=True))
        found = {path: files.get(path, b"file\n") for path in packed}
        return {
            path: part.removeprefix(b"file\n")
            for path, part in found.items()
            if part.startswith(b"file\n")
        }
