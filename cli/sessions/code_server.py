"""code-server, VS Code in the browser: how it is started in a session, and opened here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cli.sessions.servers import Server
from nsml.spec import dev_sessions

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session


async def _path(_client: Client, _session: Session) -> str:
    return "/"


CODE_SERVER: Final = Server(
    flag=dev_sessions.CODE_SERVER_FLAG,
    name="code-server",
    service=dev_sessions.CODE_SERVER_SERVICE,
    argv=dev_sessions.CODE_SERVER,
    argv_in_image=dev_sessions.CODE_SERVER_IN_IMAGE,
    needs="code-server has to be on the PATH of the session: in its image, or on its node",
    opening=_path,
)
