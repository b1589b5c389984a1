"""Servers of a session's own environment, started and opened here by `nsml dev`: JupyterLab and code-server.

Each listens on a Unix socket private to the session, reached by `nsml forward`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

LOOKS_EVERY_S: Final = 0.5


class Server(NamedTuple):
    """A kind of server."""

    flag: str
    name: str
    service: str
    """The name of its socket."""
    argv: Sequence[str]
    argv_in_image: Sequence[str]
    """For a user's image, which may lack Python."""
    needs: str
    """What to do if it is missing."""
    opening: Callable[[Client, Session], Awaitable[str]]
    """Returns the path of its first page, perhaps with a token, once it serves."""

    def advice(self, session: Session) -> str:
        """Return the advice for a session that has ended before it served."""
        return f"nsml logs {session.name}\n{self.needs}"

    async def path(self, client: Client, session: Session) -> str:
        """Return the path of its first page. Raises CommandError: the session has ended."""
        from nsml.client.errors import AlreadyEnded, NoSuchService, StateConflict

        while True:
            try:
                await client.sessions.check_service(session.id, self.service)
            except AlreadyEnded:
                raise CommandError(
                    f"session {session.name} has ended before {self.name} served",
                    code=ExitCode.CONFLICT,
                    advice=self.advice(session),
                ) from None
            except (NoSuchService, StateConflict):
                await asyncio.sleep(LOOKS_EVERY_S)  # not yet
            else:
                return await self.opening(client, session)
