"""ps, stop, rm, memo, getid, command: sessions as things in a list."""

from __future__ import annotations

import shlex
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click

from cli.app import App
from cli.arguments import (
    DATASET,
    PROJECT,
    WholeRange,
    expand,
    given_references,
    is_glob,
    session_argument,
    sessions_argument,
)
from cli.exits import CommandError, ExitCode
from cli.group import GRACE, command, near, not_there_yet, pass_app
from cli.listing import show
from cli.output import write_one
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cli.choosing import Choosing
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session, SessionFilter, SessionState

_MANY = 10
"""Removing more than this is asked for by number."""


@command(
    "ps",
    reads=True,
    examples=[
        "nsml ps",
        "nsml ps -a -d mnist",
        "nsml ps --project vision",
        "nsml ps -n 3 -o wide",
        "nsml ps --filter 'state:run user:kim lr>=1e-3 !baseline'",
        "nsml ps -a --sort -val/acc --fields name,summary.val/acc,arg.lr",
        "nsml ps -w",
        "nsml ps -a -o name",
    ],
)
@click.option("-a", "--all", "include_ended", is_flag=True, help="Ended ones as well.")
@click.option("-n", "--last", type=WholeRange(1), metavar="N", help="The last N, ended or not.")
@click.option("-d", "--data", "--dataset", "dataset", type=DATASET, help="With this dataset.")
@click.option("--project", type=PROJECT, metavar="NAME", help="That count for this project.")
@click.option("-s", "--search", metavar="TEXT", help="In name, memo or arguments; or a glob.")
@click.option("-u", "--user", "users", multiple=True, metavar="USER", help="Of these users.")
@click.option("--mine", is_flag=True, help="Your own only.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="In these states.")
@click.option("--filter", "filters", multiple=True, metavar="FILTER", help="By the words above.")
@click.option("-w", "--watch", is_flag=True, help="Stay, and show every change.")
@click.option("--sort", default="", metavar="KEY", help="By this; -KEY: the greatest first.")
@pass_app
def ps(
    app: App,
    *,
    include_ended: bool,
    last: int | None,
    dataset: str | None,
    project: str | None,
    search: str | None,
    users: tuple[str, ...],
    mine: bool,
    states: tuple[str, ...],
    filters: tuple[str, ...],
    watch: bool,
    sort: str,
) -> int:
    """List sessions: those that live, or with -a all.

    --filter takes words such as state:run,queued user:@me ds:mnist name:'kim/*/1*' lr>=1e-3 age<2h;
    other words are looked for in name, memo, arguments, summary and state. All of them must fit; ! turns one
    round, and | stands between alternatives. --sort takes a column of --fields, summary.val/acc, arg.lr,
    or val/acc and lr alone; --fields takes these, too. nsml-tui knows the same words.
    """
    from cli.choosing import Choosing

    choosing = Choosing(filters, sort)
    chosen = wanted(
        users=[*_parts(users), *(["@me"] if mine else [])],
        states=_parts(states),
        dataset=dataset or "",
        project=project or "",
        search=search or "",
        include_ended=include_ended or last is not None,
    )
    choosing.narrow(chosen)
    if watch:
        if last is not None or include_ended:
            raise CommandError("-w shows live sessions: without -a and -n", code=ExitCode.USAGE)
        from cli.watching import watch_list

        watch_list(app, chosen, choosing)
        return ExitCode.OK
    return _list(app, chosen, choosing, last)


def _parts(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.split(",")]


def _list(app: App, chosen: SessionFilter, choosing: Choosing, last: int | None) -> int:
    """Show them; PARTLY where the ended ones could not be had."""
    lacks: list[bool] = []
    limit = None if choosing.filters else last
    now = app.clock.time()

    async def fetch(client: Client) -> list[Session]:
        await choosing.know(client)
        every = client.sessions.every(
            chosen,
            limit=limit,
            summary_names=choosing.summary_names(app),
            on_missing=lambda: lacks.append(True),
        )
        found: list[Session] = []
        async with aclosing(every):
            async for session in every:
                if len(found) == last:
                    break
                if choosing.takes(session, now):
                    found.append(session)
        return found

    found = choosing.arranged(app.call(fetch), now)
    choosing.refuse_unknown(found)
    show(app, found, include_ended=chosen.include_ended, choosing=choosing)
    if not lacks:
        return ExitCode.OK
    app.say("ended sessions are missing: the platform's history does not answer (nsml status)")
    return ExitCode.PARTLY


def wanted(
    *,
    users: Sequence[str],
    states: Sequence[str],
    dataset: str,
    project: str,
    search: str,
    include_ended: bool,
) -> SessionFilter:
    """What the platform is asked for; a usage error for a state that is not known."""
    from nsml.client.streams import ENDED_STATES
    from nsml.v1 import sessions_pb2 as pb

    chosen = pb.SessionFilter(
        owners=users,
        states=[_state(one) for one in states],
        dataset=dataset,
        project=project,
        include_ended=include_ended,
    )
    if search:
        setattr(chosen, "name_glob" if is_glob(search) else "text", search)
    chosen.include_ended |= bool(ENDED_STATES & set(chosen.states))
    return chosen


def _state(text: str) -> SessionState:
    from nsml.v1.sessions_pb2 import SessionState
    from nsml.view.sessions import STATE_WORDS

    by_word: dict[str, int] = {}
    for state, word in STATE_WORDS.items():
        if state:
            by_word[word.word.lower()] = by_word[word.code.lower()] = state
    by_word |= {
        name.removeprefix("SESSION_STATE_").lower(): number
        for name, number in SessionState.items()
        if number
    }
    found = by_word.get(text.lower())
    if found is None:
        nearest = near(text.lower(), list(by_word))
        raise CommandError(
            f"no such state: {text!r}",
            code=ExitCode.USAGE,
            advice=f"state:{nearest[0]}" if nearest else ", ".join(sorted(by_word)),
        )
    return cast("SessionState", found)


@dataclass(frozen=True, slots=True)
class _Outcome:
    name: str
    error: Exception | None


async def _each(names: Sequence[str], act: Callable[[str], Awaitable[str]]) -> list[_Outcome]:
    """Act on every name, one after the other; what failed is noted, not raised."""
    from nsml.client.errors import ClientError, NotSignedIn, Unavailable

    outcomes = []
    for name in names:
        try:
            outcomes.append(_Outcome(await act(name), None))
        except (Unavailable, NotSignedIn):
            raise
        except ClientError as error:
            outcomes.append(_Outcome(name, error))
    return outcomes


@command(
    "stop",
    examples=[
        "nsml stop @last",
        "nsml stop mnist/3 mnist/4 --grace 60s",
        "nsml stop 'kim/mnist/1*' --reason 'wrong data'",
        "nsml ps -o name | nsml stop -",
    ],
)
@sessions_argument()
@click.option("--grace", type=GRACE, metavar="TIME", help="Between SIGTERM and SIGKILL.")
@click.option("--reason", default="", metavar="TEXT", help="Shown in the session's end.")
@click.option("--kill", is_flag=True, help="At once: no grace.")
@not_there_yet("--dry-run", is_flag=True)
@pass_app
def stop(
    app: App, *, references: tuple[str, ...], grace: float | None, reason: str, kill: bool
) -> int:
    """Ask sessions to end: SIGTERM, their grace, SIGKILL.

    It does not wait for that: `nsml logs -f SESSION` does, and --kill shortens it.

    SESSION may be a glob in quotes, or - for names on stdin.
    """
    if kill and grace is not None:
        raise CommandError("--kill and --grace contradict each other", code=ExitCode.USAGE)
    from nsml.client.streams import ENDED_STATES

    given = given_references(app, references)
    going: list[str] = []

    async def act(client: Client) -> list[_Outcome]:
        async def one(name: str) -> str:
            told = await client.sessions.stop(name, grace_s=0.0 if kill else grace, reason=reason)
            if told.state not in ENDED_STATES:
                going.append(told.name)
            return told.name

        return await _each(await expand(client, given, include_ended=False), one)

    def done(count: int) -> str:
        ended = [f"stopped {count - len(going)}"] if count > len(going) or not going else []
        return " · ".join([*ended, *([f"stopping {len(going)}"] if going else [])])

    code = _report(app, app.call(act), done=done, conflict="already ended")
    if going:
        which = going[0] if len(going) == 1 else "SESSION"
        hurry = "" if kill else f"   to hurry: nsml stop --kill {which}"
        app.say(f"to wait for the end: nsml logs -f {which}{hurry}")
    return code


@command(
    "requeue",
    examples=[
        "nsml requeue mnist/3",
        "nsml requeue @last --reason 'let the deadline go first'",
        "nsml requeue mnist/3 --force",
    ],
)
@sessions_argument()
@click.option("--reason", default="", metavar="TEXT", help="Shown in its attempt's end.")
@click.option("-f", "--force", is_flag=True, help="Though it could not go on, and begins anew.")
@pass_app
def requeue(app: App, *, references: tuple[str, ...], reason: str, force: bool) -> int:
    """Have running sessions save, leave their GPUs, and wait for room again.

    Each goes on later from what it saved: its program is told to save at its next report or save
    (nsml.bind), and gets SIGTERM when it has not within a minute. Its --retry is not used up.

    SESSION may be a glob in quotes, or - for names on stdin.
    """
    given = given_references(app, references)

    async def act(client: Client) -> list[_Outcome]:
        async def one(name: str) -> str:
            return (await client.sessions.requeue(name, reason=reason, force=force)).name

        return await _each(await expand(client, given, include_ended=False), one)

    return _report(app, app.call(act), done="giving way {}".format, conflict="cannot")


@command(
    "rm",
    examples=[
        "nsml rm mnist/3",
        "nsml rm 'kim/mnist/1*'",
        "nsml rm 'kim/mnist/*' --confirm 412",
        "nsml ps -a -s lstm -o name | nsml rm - -y",
    ],
)
@sessions_argument()
@click.option("-f", "--force", is_flag=True, help="Do not ask (same as -y).")
@click.option("--confirm", type=int, metavar="N", help="Remove if it is exactly N sessions.")
@not_there_yet("--dry-run", is_flag=True)
@not_there_yet("--older-than")
@not_there_yet("--keep-models", is_flag=True)
@pass_app
def rm(app: App, *, references: tuple[str, ...], force: bool, confirm: int | None) -> int:
    """Remove ended sessions with their logs, metrics and checkpoints.

    SESSION may be a glob in quotes, of which the live ones are left alone, or - for names on stdin.
    """
    given = given_references(app, references)
    names = app.call(lambda client: expand(client, given, include_live=False))
    named_one_by_one = not any(is_glob(item) or item == "-" for item in references)
    if not (force or app.flags.says_yes):
        _confirm(app, names, confirm, is_mild=named_one_by_one)
    outcomes = app.call(lambda client: _each(names, client.sessions.remove))
    return _report(app, outcomes, done="removed {}".format, conflict="still live")


def _confirm(app: App, names: Sequence[str], confirm: int | None, *, is_mild: bool) -> None:
    count = len(names)
    if confirm is not None:
        if confirm != count:
            raise CommandError(
                f"it is {counted(count, 'session')}, not {confirm}: nothing is removed",
                code=ExitCode.USAGE,
            )
        return
    if count > _MANY:
        app.say(f"will remove {count} sessions: {', '.join(names[:3])} ... {names[-1]}")
        answer = app.ask(f"type {count} to confirm: ", flag=f"--confirm {count} or -y")
        if answer != str(count):
            raise CommandError("nothing is removed", code=ExitCode.USAGE)
    elif not is_mild:
        app.say(f"will remove {', '.join(names)}")
        if not app.agrees("remove?", flag="-y"):
            raise CommandError("nothing is removed", code=ExitCode.USAGE)


def _report(
    app: App, outcomes: Sequence[_Outcome], *, done: Callable[[int], str], conflict: str
) -> int:
    """Say what came of each, `done` how so many succeeded; 9 when only some were done, else the code of what went wrong."""
    from cli.problems import problem_of, tell
    from nsml.client.errors import StateConflict

    succeeded = [item for item in outcomes if item.error is None]
    failures = [item for item in outcomes if item.error is not None]
    if len(outcomes) == 1 and failures and failures[0].error is not None:
        raise failures[0].error
    for item in succeeded:
        app.write(item.name)
    conflicts = [item for item in failures if isinstance(item.error, StateConflict)]
    codes = set()
    for item in failures:
        if item.error is not None:
            problem = problem_of(item.error)
            codes.add(problem.code)
            tell(app, problem)
    failed = len(failures) - len(conflicts)
    app.say(f"{done(len(succeeded))} · {conflict} {len(conflicts)} · failed {failed}")
    if not failures:
        return ExitCode.OK
    return ExitCode.PARTLY if succeeded or len(codes) > 1 else codes.pop()


@command(
    "memo",
    examples=[
        "nsml memo @last 'baseline'",
        "nsml memo mnist/3 --append 'with dropout'",
        "nsml memo mnist/3 --clear",
    ],
)
@session_argument()
@click.argument("text", required=False)
@click.option("--append", is_flag=True, help="After what is there.")
@click.option("--clear", is_flag=True, help="Take the memo away.")
@pass_app
def memo(app: App, *, session: str, text: str | None, append: bool, clear: bool) -> None:
    """Write a session's memo, a text of your own; without TEXT show it."""
    if clear and text is not None:
        raise CommandError("--clear takes no text", code=ExitCode.USAGE)
    if append and text is None:
        raise CommandError("--append needs a text", code=ExitCode.USAGE)

    async def act(client: Client) -> str:
        if text is None and not clear:
            return (await client.sessions.get(session)).memo
        written = "" if clear else text or ""
        if append:
            before = (await client.sessions.get(session)).memo
            written = f"{before} {written}" if before else written
        return (await client.sessions.update(session, memo=written)).memo

    from nsml.view.text import visible

    said = app.call(act)
    if text is None and not clear:
        app.write(visible(said))
    else:
        app.say(f"memo: {visible(said)}" if said else "memo cleared")


@command("getid", reads=True, examples=["nsml getid @last", "nsml getid kim/mnist/3"])
@session_argument()
@pass_app
def getid(app: App, *, session: str) -> None:
    """Show a session's id: opaque, and never used again."""
    found = app.call(lambda client: client.sessions.get(session))
    write_one(app, {"name": found.name, "id": found.id}, [found.id], name="id")


@command("command", examples=["nsml command @last", "nsml command kim/mnist/3"])
@session_argument()
@pass_app
def repeat(app: App, *, session: str) -> None:
    """Show the command line that repeats a session, ready for a shell."""
    from nsml.view.sessions import repeat_words
    from nsml.view.text import visible

    found = app.call(lambda client: client.sessions.get(session))
    app.write(visible(shlex.join(repeat_words(found))))
