"""JupyterLab of a session's own environment: how it is started there, and opened here."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, Final

from cli.sessions.servers import LOOKS_EVERY_S, Server
from nsml.spec import dev_sessions

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

_LISTED: Final = ("python", "-m", "jupyter", "server", "list", "--jsonlist")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
"""It becomes part of a URL, and comes from the session."""
_TRIES: Final = 20
"""Tries to read the token of a running server, which writes it shortly after its start."""
_MOST_BYTES: Final = 1 << 20


async def _path(client: Client, session: Session) -> str:
    """Return the path with the server's token; without one if it has none, as with a password.

    The server creates it, and reports it to its own user only.
    """
    for _ in range(_TRIES):
        for server in await _servers(client, session):
            token = server.get("token")
            if server.get("sock") and isinstance(token, str) and _TOKEN.fullmatch(token):
                return f"/lab?token={token}"
        await asyncio.sleep(LOOKS_EVERY_S)
    return "/lab"


async def _servers(client: Client, session: Session) -> list[dict[str, Any]]:
    """Return the running servers, as listed by Jupyter."""
    from nsml.client.programs import Output

    said = b""
    async with client.sessions.open_program(session.id, _LISTED) as program:
        await program.end_input()
        async for kind, data in program.output():
            if kind is Output.STANDARD and len(said) < _MOST_BYTES:
                said += data
    try:
        found = json.loads(said)
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


JUPYTER: Final = Server(
    flag=dev_sessions.JUPYTER_FLAG,
    name="Jupyter",
    service=dev_sessions.JUPYTER_SERVICE,
    argv=dev_sessions.JUPYTER,
    argv_in_image=dev_sessions.JUPYTER,
    needs="add jupyterlab to requirements.txt    if it is not there",
    opening=_path,
)
