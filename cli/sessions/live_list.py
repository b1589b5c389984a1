"""The live list of sessions: redrawn in place on a terminal, else a line for each change."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from cli.app import App, Format
from cli.exits import CommandError, ExitCode
from cli.live_table import Redrawn
from cli.output import rendered, table_lines, write_line
from cli.sessions.listing import is_cut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from cli.sessions.list_options import Choosing
    from nsml.client.calls import Client
    from nsml.common.clock import Clock
    from nsml.v1.sessions_pb2 import Session, SessionFilter


_REDRAW_S = 0.25
"""Redraw interval in seconds; changes within it are drawn together."""
_AGEING = 4
"""Every so many redraws the ages are updated, even without other changes."""


class Watched:
    """Live sessions of a watch stream, newest first, and their output."""

    def __init__(self, app: App, choosing: Choosing) -> None:
        self._app = app
        self._choosing = choosing
        self._known: dict[str, Session] = {}
        self._screen = Redrawn(app)
        self._is_stale = False
        self.link = self._screen.link

    def take(self, changed: Sequence[Session], removed: Sequence[str], *, reset: bool) -> None:
        """Apply one response of the stream; new lists and lines are shown at once."""
        news = [item for item in changed if _is_news(item, self._known.get(item.id))]
        if reset:
            self._known.clear()
        self._known.update({session.id: session for session in changed})
        for session_id in removed:
            self._known.pop(session_id, None)
        if not self._screen.draws:
            self._lines(news)
        elif reset:
            self.draw()
        else:
            self._is_stale = True

    @asynccontextmanager
    async def kept_true(self, clock: Clock) -> AsyncIterator[None]:
        """Redraw changes, and ages of unchanged sessions."""
        from nsml.common.concurrency import beside_each_other

        async def redraw() -> None:
            turn = 0
            while self._screen.draws:
                await clock.sleep(_REDRAW_S)
                turn = (turn + 1) % _AGEING
                if self._is_stale or not turn:
                    self.draw()

        async with beside_each_other() as group:
            redrawing = group.create_task(redraw())
            yield
            redrawing.cancel()

    def _lines(self, news: Sequence[Session]) -> None:
        now, choosing = self._app.clock.time(), self._choosing
        for session in (one for one in news if choosing.takes(one, now)):
            if self._app.is_for_people:
                for line in table_lines(self._app, [session], choosing.columns(self._app)):
                    self._app.write(line)
                self._app.flags.has_header = False
            else:
                write_line(self._app, choosing.record(self._app)(session))
        self._app.stdout.flush()

    def draw(self) -> None:
        """Redraw the list in place."""
        from nsml.view.times import seconds_of

        now, choosing = self._app.clock.time(), self._choosing
        meant = [one for one in self._known.values() if choosing.takes(one, now)]
        newest = sorted(meant, key=lambda one: -seconds_of(one.created_at))
        shown = choosing.arranged(newest, now)
        self._is_stale = False
        table = rendered(self._app, shown, choosing.columns(self._app))
        left_out = table.left_out_text(self._app.room)
        self._screen.show([*table.lines, *([left_out] if left_out else [])])


def _is_news(session: Session, known: Session | None) -> bool:
    """Return whether a change is worth a line: resource usage changes all the time."""
    if known is None or session.revision != known.revision or session.waiting != known.waiting:
        return session != known
    return (
        session.summary != known.summary
        or session.checkpoint_count != known.checkpoint_count
        or session.lost_checkpoint_count != known.lost_checkpoint_count
    )


def watch_list(app: App, chosen: SessionFilter, choosing: Choosing) -> None:
    """Show the live sessions and their changes, until interrupted.

    Raises CommandError (USAGE) for a format that cannot be written line by line.
    """
    from nsml.client.streams import watch_sessions

    if app.format not in {Format.TABLE, Format.WIDE, Format.JSONL}:
        raise CommandError(
            f"-w writes line by line, not as {app.format.value}",
            code=ExitCode.USAGE,
            advice="nsml ps -w -o jsonl",
        )
    watched = Watched(app, choosing)

    async def follow(client: Client) -> None:
        await choosing.know(client)
        await client.accounts.caller()  # fails at once on a dead platform; a lost one is waited for
        stream = watch_sessions(
            client,
            chosen,
            with_reports=True,
            summary_names=choosing.summary_names(app),
            short=is_cut(app, choosing),
            on_link=watched.link,
        )
        async with watched.kept_true(client.clock), aclosing(stream):
            async for answer in stream:
                watched.take(answer.changed, answer.removed, reset=answer.reset)

    app.call(follow)
