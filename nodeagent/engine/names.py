"""Names of users and groups in containers: what an image has of its own, and the session's beside them.

Programs ask who they are (`whoami`, `getpass`, prompts of shells), and no image knows the ids that sessions
run as. What the image has is read from it once, without anything of it being run.
"""

from __future__ import annotations

import io
import tarfile
import threading
from typing import TYPE_CHECKING, Final

from nodeagent.engine.client import NotThere, translated
from nodeagent.engine.containers import AGENT_LABEL, BUILD_LABEL, REPLICA_LABEL, remove_container
from nodeagent.engine.images import stored_image

if TYPE_CHECKING:
    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage

FILES: Final = ("/etc/passwd", "/etc/group")
_MOST_BYTES: Final = 1 << 20
_MOST_IMAGES: Final = 64
_NAME: Final = "nsml"


class ImageNames:
    """Reads images of `engine`, each once; `container` is the name of what it makes for that.

    Blocking; may be used by many threads.
    """

    def __init__(self, engine: Engine, container: str, mark: str) -> None:
        self._engine = engine
        self._container = container
        self._mark = mark
        self._known: dict[str, dict[str, bytes]] = {}
        self._turn = threading.Lock()

    def of(self, image_id: str) -> dict[str, bytes]:
        """Contents by path, of FILES; without those that are no files in the image. Raises EngineError."""
        with self._turn:
            if image_id not in self._known:
                while len(self._known) >= _MOST_IMAGES:
                    self._known.pop(next(iter(self._known)))
                self._known[image_id] = self._read(stored_image(self._engine, image_id))
            return self._known[image_id]

    def _read(self, image: StoredImage) -> dict[str, bytes]:
        api = self._engine.sdk.api
        remove_container(self._engine, self._container)
        labels = dict.fromkeys(image.labels, "")
        labels |= {BUILD_LABEL: self._mark, AGENT_LABEL: "", REPLICA_LABEL: ""}
        try:
            with translated(self._engine.socket):
                made = api.create_container(
                    image.id, ["true"], name=self._container, entrypoint=["true"],
                    working_dir="/", labels=labels, network_disabled=True,
                )["Id"]  # fmt: skip
            found = {path: self._file(made, path) for path in FILES}
        finally:
            remove_container(self._engine, self._container)
        return {path: content for path, content in found.items() if content is not None}

    def _file(self, container: str, path: str) -> bytes | None:
        """The content of a file; b"" where there is none, None for what is no file, or too large."""
        try:
            with translated(self._engine.socket):
                pieces, _ = self._engine.sdk.api.get_archive(container, path)
                archive = b""
                for piece in pieces:
                    archive += piece
                    if len(archive) > _MOST_BYTES:
                        return None
        except NotThere:
            return b""
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                entry = tar.next()
                file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
                return file.read() if file is not None else None
        except tarfile.TarError:
            return None


def with_session(path: str, content: bytes, uid: int, gid: int) -> bytes:
    """One of FILES with a line for the session's user, unless its id has a name already."""
    number = gid if path == "/etc/group" else uid
    lines = content.splitlines()
    if any(line.split(b":")[2:3] == [b"%d" % number] for line in lines):
        return content
    own = f"{_NAME}:x:{gid}:" if path == "/etc/group" else f"{_NAME}:x:{uid}:{gid}::/tmp:/bin/sh"
    return b"".join(line + b"\n" for line in [*lines, own.encode()])
