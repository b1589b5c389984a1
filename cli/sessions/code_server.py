"""code-server, VS Code in the browser: how it is started in a session, and opened here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cli.sessions.servers import Server

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

_SERVICE: Final = "code"
_SCRIPT: Final = (
    'd=$(mktemp -d) && ln -s "$NSML_RUN_DIR/tunnel" "$d/to" && exec code-server'
    f' --socket "$d/to/{_SERVICE}" --auth none --disable-telemetry --disable-update-check'
    ' --user-data-dir "$d" .'
)
"""Through the link the path of its socket is always short enough. Whoever reaches that was let in by the platform."""


async def _path(_client: Client, _session: Session) -> str:
    return "/"


CODE_SERVER: Final = Server(
    flag="--code-server",
    name="code-server",
    service=_SERVICE,
    argv=("sh", "-c", _SCRIPT),
    needs="code-server has to be on the PATH of the session: in its image, or on its node",
    opening=_path,
)
