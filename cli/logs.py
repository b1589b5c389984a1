"""logs: what sessions printed; also the follower that `run` uses."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import WholeRange, expand, given_references, sessions_argument
from cli.exits import ExitCode
from cli.group import command, not_there_yet, pass_app
from cli.output import COLOURS
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.client.streams import LogPiece
    from nsml.v1.sessions_pb2 import Session

_PATIENCE_S = 30.0


@command(
    "logs",
    examples=[
        "nsml logs @last",
        "nsml logs -f @last",
        "nsml logs --tail 100 kim/mnist/3",
        "nsml logs mnist/3 mnist/4 --rank 1",
    ],
)
@sessions_argument()
@click.option("-f", "--follow", is_flag=True, help="Stay until the session ends.")
@click.option("--tail", type=WholeRange(0), metavar="N", help="Only the last N lines.")
@click.option(
    "--rank",
    type=WholeRange(0),
    default=0,
    metavar="N",
    help="Which replica of a gang: each has a log.",
)
@click.option("--attempt", type=WholeRange(1), metavar="N", help="Which attempt.")
@click.option("--raw", is_flag=True, help="The very bytes, on a terminal too.")
@not_there_yet("--since")
@not_there_yet("--until")
@not_there_yet("--grep")
@not_there_yet("-t", "--timestamps", is_flag=True)
@not_there_yet("--hide-client-log", is_flag=True)
@pass_app
def logs(
    app: App,
    *,
    references: tuple[str, ...],
    follow: bool,
    tail: int | None,
    rank: int,
    attempt: int | None,
    raw: bool,
) -> None:
    """Show what sessions printed, byte for byte; on a terminal only what is safe to show.

    Ctrl-C leaves; the session goes on.
    """
    from nsml.view.sessions import log_of_first
    from nsml.view.text import visible

    given = given_references(app, references)

    async def show(client: Client) -> None:
        names = await expand(client, given)
        found = [await client.sessions.get(name) for name in names]
        width = max(len(session.name) for session in found)
        readers = [
            LogReader(
                app,
                session,
                prefix=prefix(app, session.name, width, number) if len(found) > 1 else "",
                tail=tail,
                rank=rank,
                attempt=attempt or 0,
                raw=raw,
            )
            for number, session in enumerate(found)
        ]
        if follow:
            await _follow_all(client, app, found, readers, is_one_attempt=attempt is not None)
            return
        for session, reader in zip(found, readers, strict=True):
            await reader.show(client, follow=False)
            pointer = log_of_first(session, shown_rank=rank)
            if pointer and attempt is None:
                app.say(visible(f"rank {session.end.rank} ended first: {pointer}"))

    app.call(show)


async def _follow_all(
    client: Client,
    app: App,
    sessions: Sequence[Session],
    readers: Sequence[LogReader],
    *,
    is_one_attempt: bool,
) -> None:
    """Show all until they have ended, and say how; of one attempt only what it printed."""
    from nsml.concurrency import beside_each_other
    from nsml.view.text import visible

    async def follow(session: Session, reader: LogReader) -> None:
        if is_one_attempt:
            await reader.show(client, follow=True)
            return
        if session.waiting:
            app.say(visible(f"{session.name} queued: {session.waiting}"))
        ended = await follow_to_end(client, app, session, shows=reader)
        app.say(end_words(ended, shown_rank=reader.rank))

    async with beside_each_other() as group:
        for session, reader in zip(sessions, readers, strict=True):
            group.create_task(follow(session, reader))


def prefix(app: App, name: str, width: int, number: int) -> str:
    """What stands before each line when several sessions are shown."""
    text = f"{name:<{width}} | "
    if app.painter is None:
        return text
    return app.painter(text, COLOURS[number % len(COLOURS)])


class LogReader:
    """Shows one session's output. `show` again goes on where it was left."""

    def __init__(
        self,
        app: App,
        session: Session,
        *,
        prefix: str = "",
        tail: int | None = None,
        rank: int = 0,
        attempt: int = 0,
        raw: bool = False,
    ) -> None:
        from nsml.view.text import LogText

        self._app = app
        self._session = session
        self.rank = rank
        self._attempt = attempt
        self._tail = tail
        self._offset = 0
        self._prefix = prefix
        self._rest = b""
        is_plain = raw or not (app.stdout.isatty() or prefix)
        self._text = None if is_plain else LogText(keeps_colour=app.has_colour(app.stdout))

    async def show(self, client: Client, *, follow: bool) -> None:
        """Write what there is, and with `follow` what comes, until the session has ended."""
        from nsml.client.streams import read_logs

        pieces = read_logs(
            client,
            self._session.id,
            attempt=self._attempt,
            rank=self.rank,
            offset=self._offset,
            tail_lines=self._tail,
            follow=follow,
            patience_s=None if follow else _PATIENCE_S,
            on_link=self._app.link_words(),
        )
        async with aclosing(pieces):
            async for piece in pieces:
                self._write(piece)
        self._finish()

    def _write(self, piece: LogPiece) -> None:
        if piece.missing_bytes:
            self._app.say(f"(lost: {counted(piece.missing_bytes, 'byte')} of the output)")
        self._attempt, self._tail = piece.attempt, None
        self._offset = piece.offset + len(piece.data)
        if self._prefix:
            whole, newline, self._rest = (self._rest + piece.data).rpartition(b"\n")
            self._lines(whole + newline)
        elif self._text is None:
            self._app.stdout.flush()
            _write_bytes(self._app, piece.data)
        else:
            self._app.stdout.write(self._text.feed(piece.data))
        self._app.stdout.flush()

    def _lines(self, data: bytes) -> None:
        text = self._text.feed(data) if self._text else data.decode(errors="replace")
        for line in text.splitlines():
            self._app.write(self._prefix + line)

    def _finish(self) -> None:
        if self._rest:
            self._lines(self._rest + b"\n")
            self._rest = b""
        if self._text is not None:
            self._app.stdout.write(self._text.close())
        self._app.stdout.flush()


def _write_bytes(app: App, data: bytes) -> None:
    """The very bytes, whatever the stream's encoding."""
    binary = getattr(app.stdout, "buffer", None)
    if binary is None:
        app.stdout.write(data.decode(errors="replace"))
    else:
        binary.write(data)


async def follow_to_end(
    client: Client, app: App, session: Session, *, shows: LogReader | None
) -> Session:
    """Follow a session to its end, showing its output where asked to; the ended session."""
    from nsml.client.streams import wait_until
    from nsml.concurrency import beside_each_other
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.text import visible

    told = session.waiting  # which whoever asks has been told

    def has_started(seen: Session) -> bool:
        nonlocal told
        if seen.waiting and seen.waiting != told:
            told = seen.waiting
            app.say(visible(f"{session.name} queued: {told}"))
        return seen.state not in {pb.SESSION_STATE_QUEUED, pb.SESSION_STATE_PREPARING}

    async def ended() -> Session:
        return await wait_until(
            client, session.id, lambda seen: seen.state == pb.SESSION_STATE_HELD, on_link=link
        )

    link = app.link_words()
    if shows is None:
        return await ended()
    started = await wait_until(client, session.id, has_started, on_link=link)
    if not started.attempt:
        return await ended()
    async with beside_each_other() as group:
        showing = group.create_task(shows.show(client, follow=True))
        end = await ended()
        if end.state == pb.SESSION_STATE_HELD:
            showing.cancel()  # its output has no end while somebody may release it
    if end.state == pb.SESSION_STATE_HELD:
        await shows.show(client, follow=False)
    return end


def code_of_end(session: Session) -> int:
    """The exit code of a session as this program's own: never 0 for a bad end."""
    from nsml.v1 import sessions_pb2 as pb

    if session.state == pb.SESSION_STATE_SUCCEEDED:
        return ExitCode.OK
    code = session.end.exit_code
    return code if 0 < code < 256 else ExitCode.FAILED


def end_words(session: Session, *, is_log_shown: bool = False, shown_rank: int = 0) -> str:
    """How a session ended, in one line; after its log without what that ended with, too.

    Of a gang, also the command for the log of who ended first, where that is not the shown rank.
    """
    from nsml.v1.sessions_pb2 import CAUSE_ENVIRONMENT_FAILED
    from nsml.view.sessions import log_of_first, state_text
    from nsml.view.text import visible

    # of a gang the log of another rank may have it
    is_alone = is_log_shown and session.spec.replica_count <= 1
    is_told = is_alone and session.end.cause == CAUSE_ENVIRONMENT_FAILED
    message = f": {session.end.message}" if session.end.message and not is_told else ""
    pointer = log_of_first(session, shown_rank=shown_rank)
    where = f"   see: {pointer}" if pointer else ""
    return visible(f"session {session.name} {state_text(session)}{message}{where}")
