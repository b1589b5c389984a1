"""set, pause, continue, load: changes of running programs, at one step of all processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, command, pass_app
from cli.output import write_list, write_one
from nsml.common.shell import shell_word
from nsml.common.text import visible
from nsml.spec import knobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ProgramChange, ProgramChangeKind, Session

    F = TypeVar("F", bound=Callable[..., Any])


_SHOWN_CHANGES = 20


class _Step(click.ParamType[int]):
    """A step: 5000, or step=5000."""

    name = "step"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse the number."""
        if isinstance(value, int):
            return value
        try:
            return knobs.step_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _carried_through(make: F) -> F:
    """Add the options of a change made by all processes at one step."""
    for option in (
        click.option("--detach", "is_detached", is_flag=True, help="Do not wait until it is made."),
        click.option(
            "--wait",
            "wait_s",
            type=DURATION,
            default=knobs.USUAL_WAIT_S,
            metavar="TIME",
            help="Give up if a process reaches no safe point within this time; 1h at most.  [default: 1m]",
        ),
        click.option(
            "--at",
            type=_Step(),
            metavar="STEP",
            help="At this step (5000 or step=5000), instead of as soon as possible.",
        ),
    ):
        make = option(make)
    return make


@command(
    "set",
    reads=True,
    examples=[
        "nsml set @last lr=0.003",
        "nsml set kim/mnist/3 lr=0.001 dropout=0.2 --at step=5000",
        "nsml set 12                       # the knobs, and what was changed",
        "nsml set 12 --withdraw",
    ],
)
@session_argument()
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")
@_carried_through
@click.option("--withdraw", is_flag=True, help="Withdraw the change that waits for its step.")
@pass_app
def set_(
    app: App,
    *,
    session: str,
    settings: tuple[str, ...],
    at: int | None,
    wait_s: float,
    is_detached: bool,
    withdraw: bool,
) -> int:
    """Change knobs of a running program, in all its processes at the same step.

    A knob is what the program declares with nsml.knob("lr", 0.01), or a number in the parameter
    groups of a torch optimizer that it has bound with nsml.bind(optimizer=...): lr, weight_decay,
    momentum. Learning rates keep their proportions between groups, and bound schedulers go on
    from the new base.

    Without NAME=VALUE it shows the knobs, their values, and what was changed. Each change is kept
    with its step and user: nsml diff shows it, nsml command repeats it, and another attempt makes
    it at the same step. One change at a time. Own sessions; administrators all.
    """
    if withdraw:
        if settings:
            raise click.UsageError("--withdraw takes no NAME=VALUE")
        done = app.call(lambda client: client.sessions.withdraw_change(session))
        return _write(app, session, done.changes[-1], is_withdrawal=True)
    if not settings:
        return _show(app, session)
    try:
        values = knobs.settings_of(settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return _change(app, session, "SET", is_detached, values=values, at=at, wait_s=wait_s)


@command(
    "pause",
    examples=["nsml pause @last", "nsml pause 12 --at step=5000 --limit 4h"],
)
@session_argument()
@_carried_through
@click.option(
    "--limit",
    "limit_s",
    type=DURATION,
    default=knobs.USUAL_PAUSE_S,
    metavar="TIME",
    help="Go on by itself after this time; 1d at most.  [default: 1h]",
)
@pass_app
def pause(
    app: App, *, session: str, at: int | None, wait_s: float, is_detached: bool, limit_s: float
) -> int:
    """Have a running program wait, all its processes at the same step.

    It keeps its GPUs and its memory. Meanwhile nsml exec evaluates code in it, and nsml set and
    nsml load change it; nsml continue lets it go on. To free the GPUs instead: nsml requeue.
    """
    return _change(app, session, "PAUSE", is_detached, at=at, wait_s=wait_s, limit_s=limit_s)


@command("continue", examples=["nsml continue @last", "nsml continue kim/mnist/3"])
@session_argument()
@click.option("--detach", "is_detached", is_flag=True, help="Do not wait until it goes on.")
@pass_app
def continue_(app: App, *, session: str, is_detached: bool) -> int:
    """Let a paused program go on, or withdraw a pause that waits for its step."""
    return _change(app, session, "CONTINUE", is_detached)


@command(
    "load",
    examples=["nsml load @last epoch-7", "nsml load 12 best --from kim/mnist/3 --at step=5000"],
)
@session_argument()
@click.argument("checkpoint")
@_carried_through
@click.option("--from", "source", default="", metavar="SESSION", help="Saved by this session.")
@pass_app
def load(
    app: App,
    *,
    session: str,
    checkpoint: str,
    at: int | None,
    wait_s: float,
    is_detached: bool,
    source: str,
) -> int:
    """Have a running program load a checkpoint and go on, all its processes at the same step.

    The program must have bound what loads (nsml.bind). Its loop counts on from its current step,
    not from that of the checkpoint, and knobs keep the values that were set. nsml model ls SESSION
    lists checkpoints.
    """
    name = _saved(app, source or session, checkpoint)
    return _change(
        app,
        session,
        "LOAD",
        is_detached,
        checkpoint=name,
        checkpoint_session=source,
        at=at,
        wait_s=wait_s,
    )


def _saved(app: App, session: str, checkpoint: str) -> str:
    """Return the name of a checkpoint, from its name or tag.

    Raises CommandError for an unknown one: else the program would report it in its own words.
    """
    there = app.call(lambda client: client.checkpoints.every(session))
    names = [one.name for one in there if one.name == checkpoint] or [
        one.name for one in there if checkpoint in one.tags
    ]
    if not names:
        raise CommandError(
            f"session {visible(session)} has no checkpoint {visible(checkpoint)}",
            code=ExitCode.NOT_FOUND,
            reason="NOT_FOUND",
            advice=f"nsml model ls {shell_word(session)}",
        )
    return names[0]


def _change(app: App, session: str, kind: str, is_detached: bool, **asked: Any) -> int:
    """Request a change, wait for it, and print the result."""
    from nsml.client.program_changes import until_over
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.program_changes import step_text

    def told(change: ProgramChange) -> None:
        where = step_text(change) or "the program's next safe point"
        app.say(f"waiting for {where}... (Ctrl-C stops waiting, not the change)")

    number: ProgramChangeKind = getattr(pb, f"PROGRAM_CHANGE_KIND_{kind}")
    begun: list[ProgramChange] = []

    async def run(client: Client) -> ProgramChange:
        changed = await client.sessions.change_program(session, number, **asked)
        begun.append(changed.changes[-1])
        return changed.changes[-1] if is_detached else await until_over(client, changed, told=told)

    try:
        change = app.call(run, waits=False)
    except KeyboardInterrupt:
        app.say(_left(session, begun))
        raise
    return _write(app, session, change)


def _left(session: str, begun: list[ProgramChange]) -> str:
    """Return the note on a change after the wait for it was interrupted."""
    from nsml.view.program_changes import what

    if not begun:
        return f"whether it was asked for is not known: nsml set {session}"
    return f"{what(begun[0])} stays asked for: nsml set {session} shows how far it is, --withdraw withdraws it"


def _write(app: App, session: str, change: ProgramChange, *, is_withdrawal: bool = False) -> int:
    """Print the result; raises CommandError if the change was withdrawn, unless that is the request."""
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.program_changes import OPEN, phase_word, record, results, step_text, what

    if not app.is_for_people:
        write_one(app, record(change), [str(change.number)], name="number")
    is_withdrawn = change.phase == pb.PROGRAM_CHANGE_PHASE_WITHDRAWN
    if is_withdrawn and not is_withdrawal:
        raise CommandError(
            f"not made: {what(change)}", code=ExitCode.CONFLICT, why=visible(change.reason)
        )
    if app.is_for_people:
        where = "" if is_withdrawn else step_text(change)
        app.write(f"{what(change)}: {phase_word(change)}" + (f" at {where}" if where else ""))
        for line in results(change):
            app.write(f"  {line}")
    if change.reason and not is_withdrawn:
        app.say(f"note: {visible(change.reason)}")
    if change.phase in OPEN and app.is_for_people:
        app.say(f"nsml set {session} shows how far it is; --withdraw withdraws it")
    return ExitCode.PARTLY if change.phase == pb.PROGRAM_CHANGE_PHASE_DIVIDED else ExitCode.OK


def _show(app: App, reference: str) -> int:
    """Show a session's knobs, as read from rank 0, and past changes."""
    from nsml.client.errors import ClientError
    from nsml.client.program_changes import read_knobs
    from nsml.client.streams import ENDED_STATES
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.knobs import knob_line, rows
    from nsml.view.program_changes import record

    async def run(client: Client) -> tuple[Session, Mapping[str, Any], str]:
        session = await client.sessions.get(reference)
        if session.state in ENDED_STATES or session.state == pb.SESSION_STATE_QUEUED:
            return session, {}, ""
        try:
            return session, await read_knobs(client, session.id), ""
        except ClientError as error:
            return session, {}, ": ".join(filter(None, (error.message, error.why)))

    session, found, why_not = app.call(run, waits=False)
    if not app.is_for_people:
        write_list(
            app,
            [{"knobs": found, "changes": [record(one) for one in session.changes]}],
            columns=(),
            record=lambda one: one,
            name="knobs",
        )
        return ExitCode.OK
    for knob in rows(session, found):
        if knob.facts:
            app.write(knob_line(knob))
    if why_not:
        app.say(f"its knobs cannot be seen now: {visible(why_not)}")
    elif not found and session.state not in ENDED_STATES:
        app.say('its program has declared no knob: lr = nsml.knob("lr", 0.01)')
    _show_changes(app, session)
    return ExitCode.OK


def _show_changes(app: App, session: Session) -> None:
    from nsml.view.knobs import history_line

    if len(session.changes) > _SHOWN_CHANGES:
        app.say(f"the last {_SHOWN_CHANGES} of {len(session.changes)} changes; -j has all")
    for change in session.changes[-_SHOWN_CHANGES:]:
        app.write(history_line(change, time.time()))
