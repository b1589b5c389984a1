"""The session synced with this folder by `nsml dev --sync`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cli.exits import CommandError, ExitCode
from nsml.common.shell import shell_line
from nsml.spec.variables import without_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App
    from cli.group import Typed
    from cli.sessions.sync import FolderSync
    from cli.sessions.sync_record import Record
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

_OF_THIS_CALL: Final = frozenset(
    {"has_no_shell", "is_detached", "is_synced", "is_new", "stops", "port"}
)
"""Flags without effect on the session."""


class SyncedFolder:
    """The folder of the call."""

    def __init__(self, app: App, typed: Sequence[Typed]) -> None:
        self._app = app
        self._folder = os.path.realpath(".")
        kept = [one for one in typed if one.option is None or one.option.name not in _OF_THIS_CALL]
        self._flags = without_values([word for one in kept for word in one.words])

    def session(self) -> Session | None:
        """Return the latest session started by `nsml dev` in this folder, unless it has ended.

        Raises CommandError if it was started with other flags.
        """
        from cli.sessions.sync_record import records_of_folder
        from nsml.client.streams import ENDED_STATES

        for record in records_of_folder(self._app, self._folder):
            session = self._read(record.origin.session_id)
            if session is None or session.state in ENDED_STATES:
                record.remove()
                continue
            if self._flags not in ([], record.origin.flags):
                raise self._other_flags(session, record.origin.flags)
            return session
        return None

    def remember(self, session: Session) -> None:
        """Record that the session was started in this folder, and with it."""
        from cli.sessions.sync_record import forget_old

        forget_old(self._app)
        record = self._record(session)
        if record.try_lock():
            record.close()

    def sync(self, session: Session, *, is_new: bool) -> FolderSync:
        """Return the sync of the folder with a running session; `is_new`: it was just started."""
        from cli.sessions.sync import FolderSync

        return FolderSync(self._app, session, self._record(session), is_new=is_new)

    def _record(self, session: Session) -> Record:
        from cli.sessions.sync_record import Origin, record_of

        origin = Origin(
            folder=self._folder,
            context=self._app.context.name,
            session_id=session.id,
            flags=self._flags,
            attempt=session.attempt,
        )
        return record_of(self._app, origin)

    def _read(self, session_id: str) -> Session | None:
        from nsml.client.errors import NotFound

        async def read(client: Client) -> Session | None:
            try:
                return await client.sessions.get(session_id)
            except NotFound:
                return None

        return self._app.call(read)

    def _other_flags(self, session: Session, flags: Sequence[str]) -> CommandError:
        started = shell_line(["nsml", "dev", *flags])
        again = shell_line(["nsml", "dev", *self._flags, "--sync", "--new"])
        return CommandError(
            f"session {session.name} of this folder was started with other flags",
            code=ExitCode.CONFLICT,
            why=started,
            advice=f"nsml dev --sync    attaches to it\n{again}    starts another session",
        )
