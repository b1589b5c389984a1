"""Following a submission to its end: where it is and why it waits, and the output of a dry run."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from cli.app import Format
from cli.exits import CommandError, ExitCode
from cli.output import write_one
from nsml.common.shell import shell_line
from nsml.common.text import fit, visible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.streams import Link
    from nsml.common.clock import Clock
    from nsml.common.concurrency import TaskGroup
    from nsml.v1.boards_pb2 import Submission
    from nsml.v1.competitions_pb2 import ListStandingsResponse, Standing

    Place: TypeAlias = tuple[ListStandingsResponse, Standing]
    """Standings, and a team's row of these."""

_REDRAW_S = 1.0
_LONGEST = 1000


def follow(app: App, submission: Submission, *, shows_output: bool = False) -> int:
    """Follow a submission to its end and write its result; return the exit code. Ctrl-C leaves it running.

    `shows_output`: of a dry run, also what its prediction prints.

    Raises:
        CommandError: it failed.
    """
    shows_output = shows_output and submission.is_test and app.is_for_people
    line = _Line(app, is_live=not shows_output)
    try:
        over = app.call(lambda client: _followed(client, app, submission, line, shows_output))
    except KeyboardInterrupt:
        line.close()
        app.say("")
        look = shell_line(["nsml", "submission", "info", "-w", submission.id])
        app.say(f"submission {submission.id} continues: {look}")
        return ExitCode.INTERRUPTED
    finally:
        line.close()
    return write_result(app, over, _place(app, over))


def _place(app: App, over: Submission) -> Place | None:
    """Return where a scored submission's team is in its competition; None: it is in none, or has no rank."""
    from nsml.client.competitions import own_standing
    from nsml.client.errors import ClientError

    if not over.competition or not over.HasField("score") or over.is_test:
        return None
    try:
        found = app.call(lambda client: own_standing(client, over.competition))
    except ClientError:  # the score is there all the same
        return None
    return found if found is not None and found[1].rank else None


def write_result(app: App, over: Submission, place: Place | None = None) -> int:
    """Write the score of a submission that is over and its rank, and return the exit code.

    `place`: of its team in its competition, which is the rank then.

    Raises:
        CommandError: it failed, with the cause and what to do; programs get the record before.
    """
    from nsml.v1 import boards_pb2 as pb
    from nsml.view import boards as view

    has_failed = over.state == pb.SUBMISSION_STATE_FAILED
    lines = []
    if over.HasField("score"):
        lines.append(f"Score: {_score_text(app, over.score)}")
    if place is not None:
        table, own = place
        lines.append(f"Rank: {own.rank} (team {own.team} in {over.competition}, {table.phase})")
    elif over.rank:
        of = f" (this submission, on the board of {over.dataset})" if over.competition else ""
        lines.append(f"Rank: {over.rank}{of}")
    if lines and app.is_nsml_style:
        lines.append("Done")
    if lines or not app.is_for_people:
        is_name = app.format is Format.NAME
        if not (has_failed and is_name):
            record = view.submission_record(over, team_rank=place[1].rank if place else None)
            write_one(app, record, map(visible, lines), name="id")
            app.stdout.flush()
    if note := view.keeps_best_text(over):
        app.say(f"note: {note}")
    if has_failed:
        raise _failure(over)
    if not lines:
        why = f": {over.message}" if over.message else ""
        app.say(visible(f"submission {over.id} done, without a score{why}"))
    return ExitCode.OK


def _score_text(app: App, score: float) -> str:
    """Return the score of a submission; in NSML's style with all its digits, as NSML printed it."""
    from nsml.common.units import exact_number_text
    from nsml.view.scores import score_text

    return exact_number_text(score) if app.is_nsml_style else score_text(score)


def _failure(over: Submission) -> CommandError:
    from nsml.v1 import boards_pb2 as pb
    from nsml.view import boards as view

    is_fault = over.cause == pb.SUBMISSION_CAUSE_PLATFORM
    return CommandError(
        visible(f"submission {over.id} failed ({view.cause_words(over.cause).short})"),
        code=ExitCode.UNAVAILABLE if is_fault else ExitCode.FAILED,
        reason=view.cause_name(over.cause),
        why=visible(view.why_text(over)),
        advice=view.advice_text(over),
    )


async def _followed(
    client: Client, app: App, submission: Submission, line: _Line, shows_output: bool
) -> Submission:
    """Watch it until it is over; return it."""
    from nsml.client.boards import watch_submission

    output = _Output(client, app)
    watching = watch_submission(client, submission.id, on_link=line.link)
    async with line.kept_true(client.clock) as group, aclosing(watching):
        async for seen in watching:
            submission = seen
            line.show(seen)
            if shows_output:
                output.show_new(group, seen)
        await output.wait()
    return submission


class _Line:
    """Where a submission is: on a terminal one line redrawn in place, else a line for each change."""

    def __init__(self, app: App, *, is_live: bool) -> None:
        self._app = app
        self._draws = is_live and app.has_live_progress and not app.is_quiet
        self._tell = app.link_words()
        self._seen: Submission | None = None
        self._said = ""
        self._is_drawn = False

    def show(self, seen: Submission) -> None:
        """Take its newest state."""
        from nsml.v1 import boards_pb2 as pb
        from nsml.view import boards as view

        self._seen = seen
        if self._draws:
            self._draw()
            return
        text = view.progress_text(seen)
        # The failure is the error of the command, and the score its result.
        is_over = seen.state in {pb.SUBMISSION_STATE_SCORED, pb.SUBMISSION_STATE_FAILED}
        if text != self._said and not is_over:
            self._said = text
            self._app.say(text)

    def link(self, link: Link) -> None:
        """Report a lost and a restored connection, on lines of their own."""
        self.close()
        self._tell(link)

    @asynccontextmanager
    async def kept_true(self, clock: Clock) -> AsyncIterator[TaskGroup]:
        """Redraw the running times; yields a group of tasks that end with it."""
        from nsml.common.concurrency import beside_each_other

        async def redraw() -> None:
            while self._draws:
                await clock.sleep(_REDRAW_S)
                self._draw()

        async with beside_each_other() as group:
            redrawing = group.create_task(redraw())
            yield group
            redrawing.cancel()

    def _draw(self) -> None:
        from nsml.view import boards as view

        if self._seen is None:
            return
        text = visible(view.progress_text(self._seen, self._app.clock.time()))
        # A line as wide as the terminal may wrap, and only its last row would be erased.
        room = (self._app.error_room or _LONGEST) - 1
        self._app.stderr.write(f"\r\x1b[K{fit(text, room)}")
        self._app.stderr.flush()
        self._is_drawn = True

    def close(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            self._app.stderr.write("\r\x1b[K")
            self._app.stderr.flush()
            self._is_drawn = False


class _Output:
    """The output of the sessions that predict, one after another: a step may be repeated."""

    def __init__(self, client: Client, app: App) -> None:
        import asyncio

        self._client = client
        self._app = app
        self._shown: set[str] = set()
        self._turn = asyncio.Lock()
        self._left = 0
        self._is_done = asyncio.Event()
        self._is_done.set()

    def show_new(self, group: TaskGroup, seen: Submission) -> None:
        """Show the output of its sessions that is not shown yet."""
        for step in seen.steps:
            if step.kind == "predict" and step.session and step.session not in self._shown:
                self._shown.add(step.session)
                self._left += 1
                self._is_done.clear()
                group.create_task(self._show(step.session))

    async def wait(self) -> None:
        """Wait until all of it is shown."""
        await self._is_done.wait()

    async def _show(self, name: str) -> None:
        from cli.sessions.logs import LogReader, LogReaders, follow_to_end
        from nsml.client.errors import ClientError

        try:
            async with self._turn:
                session = await self._client.sessions.get(name)
                self._app.say(f"Session {session.name} is started")
                reader = LogReaders([LogReader(self._app, session)], in_place=True)
                await follow_to_end(self._client, self._app, session, shows=reader)
        except ClientError as error:
            # The result does not depend on it.
            self._app.say(f"the output of {name} cannot be shown: {error.message}")
        finally:
            self._left -= 1
            if not self._left:
                self._is_done.set()
