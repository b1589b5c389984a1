"""logs: output of sessions; also the follower for `run`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from cli.app import App
from cli.arguments import MOMENT, WholeRange, expand, given_references, sessions_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, needless, pass_app
from cli.live_table import OpenLines
from cli.output import COLOURS
from nsml.common.shell import shell_word
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from nsml.client.calls import Client
    from nsml.client.streams import Link, LogPiece, LogSearch
    from nsml.v1.sessions_pb2 import LogLine, SearchLogsResponse, Session
    from nsml.view.terminal_output import Printed, ShownLog

_PATIENCE_S = 30.0
_LONGEST_LINE = 1 << 20
"""Most characters of a line without an end; longer ones are shown in parts."""
_MOST_FOUND_ROWS = 4
"""Most terminal rows of a line found by --grep; a longer one is cut around the match."""
ALL_RANKS = -1


class _Rank(WholeRange):
    """A rank, or ALL_RANKS for `all`."""

    name = "rank"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return ALL_RANKS if value == "all" else super().convert(value, param, ctx)


@command(
    "logs",
    examples=[
        "nsml logs @last",
        "nsml logs -f @last",
        "nsml logs --tail 100 kim/mnist/3",
        "nsml logs --since 10m -t @last",
        "nsml logs --since 2026-12-01T09:00 --until 2026-12-01T09:30 @last",
        "nsml logs mnist/3 --rank all",
        "nsml logs @last --grep 'loss: (nan|inf)' -C 3 -n",
        "nsml logs mnist/3 mnist/4 --rank 1",
    ],
)
@sessions_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the session ends.")
@click.option("--tail", type=WholeRange(0), metavar="N", help="Only the last N lines of each log.")
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only lines since: 10m, or a local time such as 09:30 (today) or 2026-12-01T09:30.",
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Only lines before this time.")
@click.option(
    "-t", "--timestamps", is_flag=True, help="Print the time of each line, in local time."
)
@click.option(
    "--rank",
    type=_Rank(),
    default=0,
    metavar="N",
    help="Replica of a gang; default: 0. all: merged, with the rank before each line.",
)
@click.option(
    "--attempt",
    type=WholeRange(1, instead="--attempt 1    the first; without it the last: one at a time"),
    metavar="N",
    help="Only this attempt; default: the last.",
)
@click.option(
    "--grep",
    metavar="PATTERN",
    help="Only lines that match a regular expression (RE2); searched by the platform.",
)
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is text, not a regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore the case of letters.")
@click.option("-v", "--invert", is_flag=True, help="Only lines that do not match PATTERN.")
@click.option(
    "-C",
    "--around",
    type=WholeRange(0, 100),
    metavar="N",
    help="With --grep: also N lines around each match.",
)
@click.option("-n", "--numbers", is_flag=True, help="With --grep: print line numbers where known.")
@click.option(
    "--raw", is_flag=True, help="Print the bytes verbatim, with every state of a progress bar."
)
@needless("--hide-client-log", why="nothing of nsml's own is between the lines")
@pass_app
def logs(
    app: App,
    *,
    references: tuple[str, ...],
    follow: bool,
    tail: int | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    timestamps: bool,
    rank: int,
    attempt: int | None,
    grep: str | None,
    fixed: bool,
    ignore_case: bool,
    invert: bool,
    around: int | None,
    numbers: bool,
    raw: bool,
) -> None:
    """Print the output of sessions.

    A line that was overwritten, such as a progress bar, is printed in its last state; with -f on a
    terminal it is redrawn in place. Other lines are printed verbatim; on a terminal control
    sequences other than colours are made visible. --grep shows the state with the match and, on a
    terminal, long lines around the match.

    stdout and stderr are one log, in the order in which they were written. Lines of several
    sessions or ranks are merged by time, with names before them. The time of a line is when the
    platform received it: a moment after it was printed, later if the node was disconnected. Ctrl-C
    leaves; the session continues.

    Groups of matches are separated by --, as in grep.
    """
    from nsml.client.streams import ENDED_STATES, LogSearch

    if follow and until is not None:
        raise click.UsageError("--until with -f: a log is followed until its session ends")
    if grep is None and (fixed or ignore_case or invert or around is not None or numbers):
        _refuse_search(references if numbers else ())
    _check_span(app, since, until)
    search = None
    if grep is not None:
        search = LogSearch(
            pattern=grep,
            is_literal=fixed,
            ignores_case=ignore_case,
            is_inverted=invert,
            context_lines=around or 0,
        )
    given = given_references(app, references)

    async def show(client: Client) -> None:
        names = await expand(client, given)
        found = [await client.sessions.get(name) for name in names]
        wanted = [(session, one) for session in found for one in _ranks(session, rank)]
        names = _names(wanted, are_many=len(found) > 1, are_ranks=rank == ALL_RANKS)
        width = max(map(len, names))
        made = [
            LogReader(
                app,
                session,
                prefix=prefix(app, name, width, number) if name else "",
                tail=tail,
                since=since,
                until=until,
                has_times=timestamps,
                rank=one,
                attempt=attempt or 0,
                raw=raw,
                search=search,
                has_numbers=numbers,
            )
            for number, ((session, one), name) in enumerate(zip(wanted, names, strict=True))
        ]
        _say_earlier(app, found, attempt)
        if follow:
            readers = [
                LogReaders([r for r in made if r.session is session], in_place=len(made) == 1)
                for session in found
            ]
            await _follow_all(client, app, found, readers, is_one_attempt=attempt is not None)
            return
        await LogReaders(made).show(client, follow=False)
        _say_what_waits(app, made)
        if search is None and tail != 0 and not any(one.has_shown for one in made):
            if since is not None or until is not None:
                app.say("no line is of that time")
            elif app.is_for_people and all(one.state in ENDED_STATES for one in found):
                app.say("nothing was printed")
        if rank != ALL_RANKS and attempt is None:
            _say_first_ended(app, found, rank)

    app.call(show)


def _say_first_ended(app: App, sessions: Sequence[Session], shown_rank: int) -> None:
    """Point to the log of the rank that ended first, for gangs whose shown rank is another."""
    from nsml.common.text import visible
    from nsml.view.sessions import log_of_first

    for session in sessions:
        pointer = log_of_first(session, shown_rank=shown_rank)
        if pointer:
            app.say(visible(f"rank {session.end.rank} ended first: {pointer}"))


def _refuse_search(references: Sequence[str]) -> NoReturn:
    """Raise for search options without --grep; for `-n 20` advise `--tail 20`."""
    session, *others = references or ("",)
    if others and others[-1].isdigit():
        raise CommandError(
            "-n numbers the lines that --grep finds",
            code=ExitCode.USAGE,
            why="the last lines are asked for with --tail",
            advice=f"nsml logs {shell_word(session)} --tail {others[-1]}",
        )
    raise click.UsageError("-F, -i, -v, -C and -n say how to search: with --grep PATTERN")


def _check_span(
    app: App, since: datetime | timedelta | None, until: datetime | timedelta | None
) -> None:
    """Raise click.UsageError if `since` is after `until`."""
    from datetime import UTC, datetime

    if since is None or until is None:
        return
    now = datetime.fromtimestamp(app.clock.time(), UTC)
    low, high = (end if isinstance(end, datetime) else now - end for end in (since, until))
    if low > high:
        raise click.UsageError("--until is before --since")


def _say_earlier(app: App, sessions: Sequence[Session], attempt: int | None) -> None:
    """Name the sessions with logs of earlier attempts, for people, unless --attempt is set."""
    from nsml.common.text import visible
    from nsml.view.sessions import earlier_logs

    if app.is_for_people and attempt is None:
        for words in filter(None, map(earlier_logs, sessions)):
            app.say(visible(words))


def _say_what_waits(app: App, readers: Sequence[LogReader]) -> None:
    """Print why a session that has not started has no output."""
    from nsml.common.text import visible
    from nsml.view.sessions import waiting_text

    for session in {reader.session.id: reader.session for reader in readers}.values():
        if words := waiting_text(session):
            app.say(visible(words))


async def _follow_all(
    client: Client,
    app: App,
    sessions: Sequence[Session],
    readers: Sequence[LogReaders],
    *,
    is_one_attempt: bool,
) -> None:
    """Follow all logs until the sessions end, and print how they ended; for one attempt only its output."""
    from nsml.common.concurrency import beside_each_other
    from nsml.common.text import visible
    from nsml.view.sessions import waiting_text

    async def follow(session: Session, reader: LogReaders) -> None:
        if is_one_attempt:
            await reader.show(client, follow=True)
            return
        if words := waiting_text(session):
            app.say(visible(words))
        ended = await follow_to_end(client, app, session, shows=reader)
        app.say(end_words(ended, shown_rank=reader.rank_for(ended)))

    async with beside_each_other() as group:
        for session, reader in zip(sessions, readers, strict=True):
            group.create_task(follow(session, reader))


def prefix(app: App, name: str, width: int, number: int) -> str:
    """Return the prefix of each line if several sessions are shown."""
    text = f"{name:<{width}} | "
    if app.painter is None:
        return text
    return app.painter(text, COLOURS[number % len(COLOURS)])


def _ranks(session: Session, rank: int) -> Iterable[int]:
    return range(max(session.spec.replica_count, 1)) if rank == ALL_RANKS else (rank,)


def _names(wanted: Sequence[tuple[Session, int]], *, are_many: bool, are_ranks: bool) -> list[str]:
    """Return the name of each log for its prefix; "" if there is only one."""
    names = []
    for session, rank in wanted:
        parts = [session.name] if are_many else []
        if are_ranks and session.spec.replica_count > 1:
            parts.append(f"rank {rank}")
        names.append(" ".join(parts))
    return names


class Run(NamedTuple):
    """Lines of one log with the same time (Unix seconds), and the function that shows them."""

    moment: float
    show: Callable[[], None]


class LogReader:
    """Shows one session's output. Repeated calls of `show` continue."""

    def __init__(
        self,
        app: App,
        session: Session,
        *,
        prefix: str = "",
        tail: int | None = None,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        has_times: bool = False,
        rank: int = 0,
        attempt: int = 0,
        raw: bool = False,
        search: LogSearch | None = None,
        has_numbers: bool = False,
    ) -> None:
        self._app = app
        self.session = session
        self.rank = rank
        self._attempt = attempt
        self._tail = tail
        self._since = since
        self._until = until
        self._offset = 0
        self._prefix = prefix
        self._has_times = self._is_timed = has_times
        self._is_by_line = bool(prefix) or has_times
        self._is_raw = raw
        self._search = search
        self._has_numbers = has_numbers
        self._line = 0
        self._found_to = -1
        self.has_shown = False
        """Whether there was any output."""
        self._at = 0.0
        """Time of the last bytes, if requested."""
        self._log = self._new_log()
        self._open: OpenLines | None = None

    def _new_log(self) -> ShownLog:
        from nsml.view.terminal_output import ShownLog

        stdout = self._app.stdout
        return ShownLog(
            is_safe=stdout.isatty() and not self._is_raw,
            keeps_colour=self._app.has_colour(stdout),
            is_raw=self._is_raw,
            longest=_LONGEST_LINE,
        )

    async def show(self, client: Client, *, follow: bool, in_place: bool = False) -> None:
        """Write the log, and with `follow` new output, until the session has ended.

        `in_place`: also show lines that may still change, redrawn in place.
        """
        if self._search is not None:
            await self._show_found(client, self._search, follow=follow)
            return
        can_draw = self._app.room is not None and self._app.has_live_progress
        if in_place and can_draw and not self._is_raw:
            self._open = OpenLines(self._app)
        try:
            async with aclosing(self._pieces(client, follow=follow)) as pieces:
                async for piece in pieces:
                    for one in self._take(piece):
                        self._write(one)
                    self._show_open()
            self._finish()
        finally:
            if self._open is not None:
                self._open.leave()

    async def runs(self, client: Client) -> AsyncGenerator[Run, None]:
        """Yield the log's parts, to merge several logs. Each is shown before the next is requested."""
        from nsml.view.times import seconds_of

        if self._search is not None:
            async with aclosing(self._answers(client, self._search, follow=False)) as answers:
                async for answer in answers:
                    for line in answer.lines:
                        show = partial(self._write_found, (line,), self._search)
                        yield Run(seconds_of(line.time), show)
            self._say_none(self._search)
            return
        self._is_timed = True
        async with aclosing(self._pieces(client, follow=False)) as pieces:
            async for piece in pieces:
                for one in self._take(piece):
                    yield Run(one.at, partial(self._write, one))
        for one in self._log.close():
            yield Run(one.at, partial(self._write, one))
        self._finish()

    def _pieces(self, client: Client, *, follow: bool) -> AsyncGenerator[LogPiece, None]:
        from nsml.client.streams import read_logs

        return read_logs(
            client,
            self.session.id,
            attempt=self._attempt,
            rank=self.rank,
            offset=self._offset,
            tail_lines=self._tail,
            since=self._since,
            until=self._until,
            times=self._is_timed,
            follow=follow,
            patience_s=None if follow else _PATIENCE_S,
            on_link=partial(self._link, self._app.link_words()),
        )

    async def _show_found(self, client: Client, search: LogSearch, *, follow: bool) -> None:
        async with aclosing(self._answers(client, search, follow=follow)) as answers:
            async for answer in answers:
                self._write_found(answer.lines, search)
                self._app.stdout.flush()
        if not follow:
            self._say_none(search)

    async def _answers(
        self, client: Client, search: LogSearch, *, follow: bool
    ) -> AsyncGenerator[SearchLogsResponse, None]:
        from nsml.client.streams import search_logs

        answers = search_logs(
            client,
            self.session.id,
            search,
            attempt=self._attempt,
            rank=self.rank,
            offset=self._offset,
            line=self._line,
            tail_lines=self._tail,
            since=self._since,
            until=self._until,
            follow=follow,
            patience_s=None if follow else _PATIENCE_S,
            on_link=self._app.link_words(),
        )
        async with aclosing(answers):
            async for answer in answers:
                self._say_lost(answer.missing_bytes)
                self._attempt, self._tail, self._since = answer.attempt, None, None
                self._offset, self._line = answer.next, answer.next_line
                yield answer

    def _link(self, tell: Callable[[Link], None], link: Link) -> None:
        self._clear_open()
        tell(link)

    def _clear_open(self) -> None:
        if self._open is not None:
            self._open.clear(self._log.style)

    def _say_lost(self, count: int) -> None:
        if count:
            self._clear_open()
            self._app.say(f"(lost: {counted(count, 'byte')} of the output)")

    def _say_none(self, search: LogSearch) -> None:
        if self._found_to < 0:
            from nsml.common.text import visible

            words = "every line fits" if search.is_inverted else "no line fits"
            self._app.say(visible(f"{self.session.name}: {words}") if self._prefix else words)

    def _write_found(self, lines: Sequence[LogLine], search: LogSearch) -> None:
        for line in lines:
            self._write_text(self._found(line, search))

    def _found(self, line: LogLine, search: LogSearch) -> str:
        """Format a found line with its prefixes; -- before one not adjacent to the last."""
        from nsml.common.text import width
        from nsml.common.units import local_moment
        from nsml.view.terminal_output import found_text
        from nsml.view.times import seconds_of

        is_apart = search.context_lines and -1 < self._found_to != line.offset
        self._found_to = line.offset + len(line.text) + 1
        before = self._prefix
        if self._has_times:
            before += f"{local_moment(seconds_of(line.time))} "
        if self._has_numbers and line.number:
            before += f"{line.number}{'-' if line.is_context else ':'}"
        has_match = line.match_end and not self._is_raw
        room = self._app.room
        text = found_text(
            line.text,
            (line.match_begin, line.match_end) if has_match else None,
            log=self._new_log(),
            cells=None if room is None else max(room * _MOST_FOUND_ROWS - width(before), room),
        )
        return (f"{self._prefix}--\n" if is_apart else "") + f"{before}{text}\n"

    def _take(self, piece: LogPiece) -> Iterator[Printed]:
        """Yield the lines completed by a piece, by time if requested."""
        if 0 < self._attempt < piece.attempt:
            yield from self._end_attempt()
            self._say_attempt(piece.attempt)
        self._say_lost(piece.missing_bytes)
        self._attempt, self._tail, self._since = piece.attempt, None, None
        self._offset = piece.offset + len(piece.data)
        self.has_shown |= bool(piece.data)
        begin = piece.offset
        for offset, at in piece.times:
            end = min(max(offset, begin), self._offset)
            yield from self._log.feed(
                piece.data[begin - piece.offset : end - piece.offset], self._at
            )
            begin, self._at = end, at
        yield from self._log.feed(piece.data[begin - piece.offset :], self._at)

    def _end_attempt(self) -> list[Printed]:
        """Return the rest of an attempt, ended by a newline if its last line has none: the next starts on a new line."""
        done = self._log.close()
        if done and not self._is_raw and not done[-1].text.endswith("\n"):
            done[-1] = done[-1]._replace(text=done[-1].text + "\n")
        self._log = self._new_log()
        return done

    def _say_attempt(self, attempt: int) -> None:
        from nsml.common.text import visible
        from nsml.view.sessions import earlier_logs

        if self._app.is_for_people:
            self._clear_open()
            self._app.stdout.flush()
            self._app.say(visible(earlier_logs(self.session, attempt)))

    def _write(self, printed: Printed) -> None:
        text = printed.text
        if self._is_by_line:
            before = self._before(printed.at)
            text = "".join(f"{before}{line}\n" for line in text.removesuffix("\n").split("\n"))
        if self._open is not None:
            text = self._open.over(text, self._log.style)
        self._write_text(text)

    def _before(self, at: float) -> str:
        """Return the prefix of a line."""
        from nsml.common.units import local_moment

        return self._prefix + (f"{local_moment(at)} " if self._has_times and at else "")

    def _show_open(self) -> None:
        if self._open is None:
            self._app.stdout.flush()
            return
        before = self._before(self._at) if self._is_by_line else ""
        text = self._log.open
        lines = [before + line for line in text.split("\n")] if text else []
        self._open.show(lines, self._log.style)

    def _write_text(self, text: str) -> None:
        if self._app.stdout.isatty() and not self._is_raw:
            self._app.stdout.write(text)
        else:
            _write_bytes(self._app, text.encode(errors="surrogateescape"))

    def _finish(self) -> None:
        for one in self._log.close():
            self._write(one)
        self._app.stdout.flush()


class LogReaders:
    """Several logs shown as one; for one session until its end.

    `in_place`: nothing else is printed meanwhile, so lines may be redrawn.
    """

    def __init__(self, readers: Sequence[LogReader], *, in_place: bool = False) -> None:
        self._readers = readers
        self._in_place = in_place

    @property
    def has_shown(self) -> bool:
        """Whether any of them had output."""
        return any(one.has_shown for one in self._readers)

    def rank_for(self, session: Session) -> int:
        """Return the shown rank; if all are shown, the rank of the session's end."""
        return self._readers[0].rank if len(self._readers) == 1 else session.end.rank

    async def show(self, client: Client, *, follow: bool) -> None:
        """See LogReader; several logs are merged by time, with `follow` in order of arrival."""
        from nsml.common.concurrency import beside_each_other

        if len(self._readers) == 1:
            await self._readers[0].show(client, follow=follow, in_place=self._in_place)
        elif follow:
            async with beside_each_other() as group:
                for reader in self._readers:
                    group.create_task(reader.show(client, follow=True))
        else:
            await _in_order([reader.runs(client) for reader in self._readers])


async def _in_order(logs: Sequence[AsyncGenerator[Run, None]]) -> None:
    """Merge logs by time; each stays in its own order, whatever its times."""
    from nsml.common.concurrency import beside_each_other

    next_ones: list[tuple[float, int, Run]] = []

    async def ask(number: int) -> None:
        run = await anext(logs[number], None)
        if run is not None:
            heappush(next_ones, (run.moment, number, run))

    async with AsyncExitStack() as stack:
        for log in logs:
            await stack.enter_async_context(aclosing(log))
        async with beside_each_other() as group:
            for number in range(len(logs)):
                group.create_task(ask(number))
        while next_ones:
            _, number, run = heappop(next_ones)
            run.show()
            await ask(number)


def _write_bytes(app: App, data: bytes) -> None:
    """Write raw bytes, whatever the stream's encoding."""
    binary = getattr(app.stdout, "buffer", None)
    if binary is None:
        app.stdout.write(data.decode(errors="replace"))
    else:
        app.stdout.flush()
        binary.write(data)


async def follow_to_end(
    client: Client,
    app: App,
    session: Session,
    *,
    shows: LogReader | LogReaders | None,
    prepares: bool = False,
) -> Session:
    """Follow a session to its end, with its output if `shows`, `prepares`: from its preparation on; return the ended session."""
    from nsml.client.streams import wait_until
    from nsml.common.concurrency import beside_each_other
    from nsml.common.text import visible
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.sessions import waiting_text

    reported = session.waiting  # printed already

    def has_started(seen: Session) -> bool:
        nonlocal reported
        if seen.waiting and seen.waiting != reported:
            reported = seen.waiting
            app.say(visible(waiting_text(seen)))
        if prepares and seen.attempt and seen.state == pb.SESSION_STATE_PREPARING:
            return True
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
            showing.cancel()  # its output has no end, as the session may still be released
    if end.state == pb.SESSION_STATE_HELD:
        await shows.show(client, follow=False)
    return end


def code_of_end(session: Session) -> int:
    """Return the exit code for a session's end: never 0 for a failure."""
    from nsml.v1 import sessions_pb2 as pb

    if session.state == pb.SESSION_STATE_SUCCEEDED:
        return ExitCode.OK
    code = session.end.exit_code
    return code if 0 < code < 256 else ExitCode.FAILED


def end_words(session: Session, *, is_log_shown: bool = False, shown_rank: int = 0) -> str:
    """Return the end of a session in one line; after its log without a message shown there.

    For a gang also the command for the log of the rank that ended first, if it is not the shown rank.
    """
    from nsml.common.text import visible
    from nsml.v1.sessions_pb2 import CAUSE_ENVIRONMENT_FAILED
    from nsml.view.sessions import is_last_output, log_of_first, state_text

    # in a gang it may be in the log of another rank
    is_alone = is_log_shown and session.spec.replica_count <= 1
    is_in_log = session.end.cause == CAUSE_ENVIRONMENT_FAILED or is_last_output(session)
    is_told = is_alone and is_in_log
    message = f": {session.end.message}" if session.end.message and not is_told else ""
    pointer = log_of_first(session, shown_rank=shown_rank)
    where = f"   see: {pointer}" if pointer else ""
    return visible(f"session {session.name} {state_text(session)}{message}{where}")
