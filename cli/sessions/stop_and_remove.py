"""stop, requeue, rm, memo: commands that change sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import given_references, is_glob, session_argument, sessions_argument
from cli.confirmation import confirmed, go_ahead
from cli.exits import CommandError, ExitCode
from cli.group import GRACE, command, not_there_yet, pass_app, set_flag
from cli.sessions.targets import Targets, already_ended, plan_for, resolve, user_option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nsml.client.calls import Client
    from nsml.client.errors import ClientError
    from nsml.v1.sessions_pb2 import Session


_MOST_LEFT = 3
"""Most sessions named that match a glob and are left alone."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    name: str
    error: Exception | None


def _sort(
    targets: Targets, refusal: Callable[[Session], ClientError | None]
) -> tuple[list[Session], list[_Outcome]]:
    """Return the sessions to act on, and the outcomes of the others, known without acting.

    Not left to the platform: a session that changes during a question was not confirmed.
    """
    from nsml.client.errors import Denied

    able: list[Session] = []
    refused: list[_Outcome] = []
    for session in targets.sessions:
        error = refusal(session)
        if not targets.may_change(session):
            error = Denied(
                f"session {session.name} is {session.owner}'s",
                why="only its owner and administrators change it",
            )
        if error is None:
            able.append(session)
        else:
            refused.append(_Outcome(session.name, error))
    return able, refused + [_Outcome(name, error) for name, error in targets.failures]


async def _each(
    sessions: Sequence[Session], act: Callable[[Session], Awaitable[str]]
) -> list[_Outcome]:
    """Act on every session, one after the other; failures are collected, not raised."""
    from nsml.client.errors import ClientError, NotSignedIn, Unavailable

    outcomes = []
    for session in sessions:
        try:
            outcomes.append(_Outcome(await act(session), None))
        except (Unavailable, NotSignedIn):
            raise
        except ClientError as error:
            outcomes.append(_Outcome(session.name, error))
    return outcomes


def _ended(session: Session) -> ClientError | None:
    """Return the error for stopping or moving an ended session, else None."""
    from nsml.client.streams import ENDED_STATES

    return already_ended(session) if session.state in ENDED_STATES else None


def _not_requeued(session: Session) -> ClientError | None:
    """The same for requeueing, with advice to submit it again."""
    if (error := _ended(session)) is not None:
        error.advice = f"nsml command {session.name}    for the line that runs it again"
        error.why = (
            "a new session begins at step 0, unless its program loads a checkpoint of this one:"
            f" nsml.load(NAME, session={session.name!r})"
        )
    return error


def _live(session: Session) -> ClientError | None:
    """Return the error for removing a live session, else None."""
    from nsml.client.errors import StillLive
    from nsml.client.streams import ENDED_STATES

    if session.state in ENDED_STATES:
        return None
    return StillLive(
        f"{session.name} has not ended",
        reason="STILL_LIVE",
        advice=f"nsml stop {session.name}",
    )


@command(
    "stop",
    examples=[
        "nsml stop @last",
        "nsml stop mnist/3 mnist/4 --grace 60s",
        "nsml stop 'mnist/1*' --reason 'wrong data' -y",
        "nsml stop '*' --user lee --dry-run",
        "nsml ps -o name | nsml stop - -y",
    ],
)
@sessions_argument()
@user_option
@click.option("--grace", type=GRACE, metavar="TIME", help="Time between SIGTERM and SIGKILL.")
@click.option("--reason", default="", metavar="TEXT", help="Shown in the session's end.")
@click.option("--kill", is_flag=True, help="End at once, without grace.")
@confirmed
@pass_app
def stop(
    app: App,
    *,
    references: tuple[str, ...],
    users: tuple[str, ...],
    grace: float | None,
    reason: str,
    kill: bool,
) -> int:
    """End sessions: SIGTERM, their grace, SIGKILL.

    Asks first for more than one session, and for somebody else's. Returns at once: `nsml logs -f
    SESSION` waits for the end, and --kill shortens it.

    SESSION may be a glob over your own sessions, in quotes, or - for names on stdin.
    """
    if kill and grace is not None:
        raise CommandError("--kill and --grace contradict each other", code=ExitCode.USAGE)
    from nsml.client.streams import ENDED_STATES

    given = given_references(app, references)
    targets = app.call(lambda client: resolve(client, given, users=users, include_ended=False))
    live, refused = _sort(targets, _ended)
    if not go_ahead(app, plan_for("stop", targets, live)):
        return _tell_refused(app, live, refused)
    going: list[str] = []

    async def act(client: Client) -> list[_Outcome]:
        async def one(session: Session) -> str:
            stopped = await client.sessions.stop(
                session.id, grace_s=0.0 if kill else grace, reason=reason
            )
            if stopped.state not in ENDED_STATES:
                going.append(stopped.name)
            return stopped.name

        return await _each(live, one)

    def done(count: int) -> str:
        ended = [f"stopped {count - len(going)}"] if count > len(going) or not going else []
        return " · ".join([*ended, *([f"stopping {len(going)}"] if going else [])])

    code = _report(app, _acted(app, live, act) + refused, done=done, conflict="already ended")
    if going:
        which = going[0] if len(going) == 1 else "SESSION"
        app.say(f"to wait for the end: nsml logs -f {which}")
        if not kill:
            app.say(f"to end it at once:   nsml stop --kill {which}")
    return code


@command(
    "requeue",
    examples=[
        "nsml requeue mnist/3",
        "nsml requeue @last",
        "nsml requeue mnist/3 --force",
        "nsml requeue 'mnist/*' --dry-run",
    ],
)
@sessions_argument()
@user_option
@click.option("--reason", default="", metavar="TEXT", help="Shown in its attempt's end.")
@click.option(
    "-f", "--force", is_flag=True, help="Also if it cannot resume and starts from the beginning."
)
@confirmed
@pass_app
def requeue(
    app: App, *, references: tuple[str, ...], users: tuple[str, ...], reason: str, force: bool
) -> int:
    """Save running sessions, free their GPUs, and queue them again.

    Each resumes later from its checkpoint. The program is asked to save at its next report or save
    (nsml.bind), and gets SIGTERM if it has not within a minute. This uses up no --retry. A held
    session is released: it is queued at once, and its bad attempts no longer count. Asks first for
    more than one session, and for somebody else's.

    SESSION may be a glob over your own sessions, in quotes, or - for names on stdin.
    """
    given = given_references(app, references)
    targets = app.call(
        lambda client: resolve(client, given, users=users, include_ended=False, finds_left=True)
    )
    live, refused = _sort(targets, _not_requeued)
    left = _left_text(targets.left, "nsml command {} prints the line that runs it again")
    plan = plan_for("requeue", targets, live)
    if not go_ahead(app, plan, aside=left):
        return _tell_refused(app, live, refused)

    async def act(client: Client) -> list[_Outcome]:
        async def one(session: Session) -> str:
            answer = await client.sessions.requeue(session.id, reason=reason, force=force)
            return answer.name

        return await _each(live, one)

    outcomes = _acted(app, live, act)
    requeued = {one.name for one in outcomes if one.error is None}
    code = _report(app, outcomes + refused, done="requeued {}".format, conflict="refused")
    for one in live:
        if one.name in requeued:
            app.say(f"{one.name} is queued, and resumes as attempt {one.attempt + 1}")
    if left and (app.flags.says_yes or not plan.asks):
        app.say(left)
    return code


@command(
    "rm",
    examples=[
        "nsml rm mnist/3",
        "nsml rm 'mnist/1*' --dry-run",
        "nsml rm 'mnist/*' --confirm 412",
        "nsml ps -a --mine -s lstm -o name | nsml rm - -y",
    ],
)
@sessions_argument()
@user_option
@click.option(
    "-f",
    "--force",
    is_flag=True,
    expose_value=False,
    callback=set_flag("says_yes"),
    help="Do not ask (same as -y).",
)
@click.option(
    "--confirm",
    type=int,
    metavar="N",
    help="Do not ask if exactly N sessions match; else do nothing.",
)
@confirmed
@not_there_yet("--older-than")
@not_there_yet("--keep-models", is_flag=True)
@pass_app
def rm(
    app: App, *, references: tuple[str, ...], users: tuple[str, ...], confirm: int | None
) -> int:
    """Remove ended sessions with their logs, metrics and checkpoints, for good.

    Asks first, and says how much is lost. Sessions that loaded these checkpoints keep them while
    they run, but cannot load them again.

    SESSION may be a glob over your own sessions, in quotes (live ones are skipped), or - for names
    on stdin.
    """
    from nsml.client.checkpoints import saved_in
    from nsml.view.confirmation import losses

    given = given_references(app, references)
    targets = app.call(
        lambda client: resolve(client, given, users=users, include_live=False, finds_left=True)
    )
    ended, refused = _sort(targets, _live)
    lost = losses(ended)
    if app.flags.is_dry_run or not app.flags.says_yes:
        lost = losses(ended, app.call(lambda client: saved_in(client, ended)))
    left = _left_text(targets.left, "nsml stop {} ends it")
    plan = plan_for("rm", targets, ended, loses=lost)
    if not go_ahead(app, plan, expected=confirm, aside=left):
        return _tell_refused(app, ended, refused)

    async def act(client: Client) -> list[_Outcome]:
        return await _each(ended, lambda one: client.sessions.remove(one.id))

    outcomes = _acted(app, ended, act)
    is_removed = any(one.error is None for one in outcomes)
    code = _report(app, outcomes + refused, done="removed {}".format, conflict="still live")
    if left and (app.flags.says_yes or confirm is not None):
        app.say(left)
    if is_removed and (counted_back := [one for one in given if one.startswith("@")]):
        app.say(app.call(lambda client: _now_named(client, counted_back[0])))
    return code


async def _now_named(client: Client, reference: str) -> str:
    """Name the session that `@last` or `@2` is after a removal."""
    from nsml.client.errors import NotFound

    try:
        return f"{reference} is now {(await client.sessions.get(reference)).name}"
    except NotFound:
        return f"{reference} is no session now"


def _left_text(left: Sequence[Session], hint: str) -> str:
    """Name sessions that match a glob and are left alone for their state; `hint`: advice on one, which is `{}`."""
    from nsml.common.shell import shell_word
    from nsml.common.text import visible
    from nsml.view.sessions import word_of

    if not left:
        return ""
    states = [f"{one.name} ({word_of(one).word.lower()})" for one in left[:_MOST_LEFT]]
    more = len(left) - len(states)
    names = ", ".join([*states, *([f"and {more:,} more"] if more else [])])
    which = shell_word(left[0].name) if len(left) == 1 else "SESSION"
    return f"left alone: {visible(names)}; {hint.format(which)}"


def _acted(
    app: App, sessions: Sequence[Session], act: Callable[[Client], Awaitable[list[_Outcome]]]
) -> list[_Outcome]:
    return app.call(act) if sessions else []


def _tell_refused(app: App, able: Sequence[Session], refused: Sequence[_Outcome]) -> int:
    """Print what would be refused and return the exit code of --dry-run."""
    from cli.problems import problem_of, tell

    problems = [problem_of(one.error) for one in refused if one.error is not None]
    for problem in problems:
        tell(app, problem)
    if not problems:
        return ExitCode.OK
    return ExitCode.PARTLY if able else problems[0].code


def _report(
    app: App, outcomes: Sequence[_Outcome], *, done: Callable[[int], str], conflict: str
) -> int:
    """Print the outcomes, `done` formats the count of successes; return 9 if only some succeeded, else the code of the failure."""
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
        "nsml memo 'mnist/1*' 'first sweep' -y",
        "nsml memo mnist/3 --clear",
    ],
)
@session_argument()
@click.argument("text", required=False)
@user_option
@click.option("--append", is_flag=True, help="Append to the memo.")
@click.option("--clear", is_flag=True, help="Clear the memo.")
@confirmed
@pass_app
def memo(
    app: App,
    *,
    session: str,
    text: str | None,
    users: tuple[str, ...],
    append: bool,
    clear: bool,
) -> int:
    """Write a session's memo, a text of your own; without TEXT show it.

    SESSION may be a glob over your own sessions, in quotes. Asks first before it changes the memo of more
    than one session, or of somebody else's.
    """
    if clear and text is not None:
        raise CommandError("--clear takes no text", code=ExitCode.USAGE)
    if append and text is None:
        raise CommandError("--append needs a text", code=ExitCode.USAGE)
    from nsml.common.text import visible

    targets = app.call(lambda client: resolve(client, [session], users=users))
    for _, error in targets.failures:
        raise error
    if text is None and not clear:
        _show_memos(app, targets.sessions, is_one=not is_glob(session))
        return ExitCode.OK
    able, refused = _sort(targets, lambda _: None)
    if not go_ahead(app, plan_for("memo", targets, able)):
        return _tell_refused(app, able, refused)
    written: list[str] = []

    async def act(client: Client) -> list[_Outcome]:
        async def one(found: Session) -> str:
            before = found.memo if append else ""
            new = f"{before} {text}" if before else text or ""
            answer = await client.sessions.update(found.id, memo=new)
            written.append(answer.memo)
            return answer.name

        return await _each(able, one)

    outcomes = _acted(app, able, act) + refused
    if len(outcomes) == 1 and written:
        cleared = "memo cleared" if able[0].memo else f"{able[0].name} has no memo"
        app.say(f"memo: {visible(written[0])}" if written[0] else cleared)
        if app.is_for_people and written[0]:
            app.say("  see: nsml ps -a --fields name,memo")
        return ExitCode.OK
    return _report(app, outcomes, done="changed {}".format, conflict="cannot")


def _show_memos(app: App, sessions: Sequence[Session], *, is_one: bool) -> None:
    """Print the memo alone, or after the name of each session."""
    from nsml.common.text import visible

    width = max(len(one.name) for one in sessions)
    for one in sessions:
        app.write(visible(one.memo if is_one else f"{one.name:<{width}}  {one.memo}".rstrip()))
