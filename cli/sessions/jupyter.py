"""JupyterLab of a session's own environment: how it is started there, and opened here."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, Final

from cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

SERVICE: Final = "jupyter"
ARGV: Final = (
    "python",
    "-c",
    (
        "import os, sys; run = os.open(os.environ['NSML_RUN_DIR'], os.O_PATH);"
        " os.set_inheritable(run, True);"
        " os.execv(sys.executable, [sys.executable, '-m', 'jupyter', 'lab', '--no-browser',"
        f" '--allow-root', f'--ServerApp.sock=/proc/self/fd/{{run}}/tunnel/{SERVICE}'])"
    ),
)
"""The server listens on a Unix socket of the session alone. Through an open folder its path is always short enough."""
_LISTED: Final = ("python", "-m", "jupyter", "server", "list", "--jsonlist")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
"""It becomes a part of an address, and comes from the session."""
_LOOKS_EVERY_S: Final = 0.5
_TRIES: Final = 20
"""To read the token of a server that answers already: it writes that a moment later."""
_MOST_BYTES: Final = 1 << 20


def advice_for(session: Session) -> str:
    """What to do about a session that has ended before it served."""
    return f"nsml logs {session.name}\nadd jupyterlab to requirements.txt    if it is not there"


async def token_of(client: Client, session: Session) -> str:
    """The token of the session's server, once it serves; empty where it has none, as with a password.

    The server alone makes it, and tells its own user.

    Raises:
        CommandError: the session has ended.
    """
    from nsml.client.errors import AlreadyEnded, NoSuchService, StateConflict

    tries_left = _TRIES
    while tries_left:
        try:
            await client.sessions.check_service(session.id, SERVICE)
            tries_left -= 1
            for server in await _servers(client, session):
                token = server.get("token")
                if server.get("sock") and isinstance(token, str) and _TOKEN.fullmatch(token):
                    return token
        except AlreadyEnded:
            raise CommandError(
                f"session {session.name} has ended before Jupyter served",
                code=ExitCode.CONFLICT,
                advice=advice_for(session),
            ) from None
        except (NoSuchService, StateConflict):
            pass  # not yet
        await asyncio.sleep(_LOOKS_EVERY_S)
    return ""


async def _servers(client: Client, session: Session) -> list[dict[str, Any]]:
    """What runs there, as Jupyter tells."""
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
