"""set, pause, continue, load: changes of running programs, at one step of all processes."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, command, pass_app
from cli.output import write_list, write_one
from nsml.common.text import visible
from nsml.common.units import ago
from nsml.spec import knobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ProgramChange, ProgramChangeKind, Session

    F = TypeVar("F", bound=Callable[..., Any])

_LOOK_EVERY_S: Final = (0.05, 0.5)
"""How often it is asked how far a change is: first, and later."""
_PATIENCE_S: Final = 3.0
"""After so long it is said what is waited for."""
_KNOBS: Final = "nsml.knobs()"


class _Step(click.ParamType[int]):
    """A step: 5000, or step=5000."""

    name = "step"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number."""
        if isinstance(value, int):
            return value
        word = str(value).removeprefix("step=").replace(",", "").replace("_", "")
        if not (word.isascii() and word.isdigit()) or int(word) > knobs.MOST_STEP:
            self.fail(f"{str(value)[:80]!r} is no step: it takes 5000, or step=5000", param, ctx)
        return int(word)


def _carried_through(make: F) -> F:
    """The options of a change that all processes make at one step."""
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
    values: dict[str, str] = {}
    for word in settings:
        name, value, step = _setting(word)
        if step is not None:
            raise click.UsageError(
                f"the step is named by --at: nsml set SESSION {name}=... --at {step}"
            )
        values[name] = value
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
    return _change(
        app,
        session,
        "LOAD",
        is_detached,
        checkpoint=checkpoint,
        checkpoint_session=source,
        at=at,
        wait_s=wait_s,
    )


def _setting(word: str) -> tuple[str, str, int | None]:
    try:
        return knobs.setting_of(word)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _change(app: App, session: str, kind: str, is_detached: bool, **asked: Any) -> int:
    """Ask for it, wait until it is over, and say what came of it."""
    from nsml.v1 import sessions_pb2 as pb

    number: ProgramChangeKind = getattr(pb, f"PROGRAM_CHANGE_KIND_{kind}")

    async def run(client: Client) -> ProgramChange:
        changed = await client.sessions.change_program(session, number, **asked)
        change = changed.changes[-1]
        return change if is_detached else await _over(app, client, changed.id, change)

    return _write(app, session, app.call(run, waits=False))


async def _over(app: App, client: Client, session_id: str, change: ProgramChange) -> ProgramChange:
    """The change once it is over."""
    from nsml.view.program_changes import OPEN, step_text

    loop, (pause_s, longest_s) = asyncio.get_running_loop(), _LOOK_EVERY_S
    say_at = loop.time() + _PATIENCE_S
    while change.phase in OPEN:
        if loop.time() >= say_at:
            where = step_text(change) or "the program's next safe point"
            app.say(f"waiting for {where}... (Ctrl-C stops waiting, not the change)")
            say_at = float("inf")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
        session = await client.sessions.get(session_id)
        change = _same(session, change)
    return change


def _same(session: Session, change: ProgramChange) -> ProgramChange:
    for one in session.changes:
        if one.number == change.number:
            return one
    raise CommandError(f"{session.name} keeps nothing of this change any more")


def _write(app: App, session: str, change: ProgramChange, *, is_withdrawal: bool = False) -> int:
    """Say what came of it; raises CommandError where it was not made, and nobody wanted that."""
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
    """The knobs of a session, as its rank 0 has them, and what was changed."""
    from nsml.client.errors import ClientError
    from nsml.client.streams import ENDED_STATES
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.program_changes import record

    async def run(client: Client) -> tuple[Session, Mapping[str, Any], str]:
        session = await client.sessions.get(reference)
        if session.state in ENDED_STATES or session.state == pb.SESSION_STATE_QUEUED:
            return session, {}, ""
        try:
            found = await client.sessions.evaluate(
                session.id, f"import json, nsml\njson.dumps({_KNOBS})", wait_s=5.0
            )
            return session, _parsed(found.value), ""
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
    for name, facts in found.items():
        app.write(_knob_line(name, facts))
    if why_not:
        app.say(f"its knobs cannot be seen now: {visible(why_not)}")
    elif not found and session.state not in ENDED_STATES:
        app.say('its program has declared no knob: lr = nsml.knob("lr", 0.01)')
    for change in session.changes:
        app.write(_history_line(change))
    return ExitCode.OK


def _parsed(value: str) -> Mapping[str, Any]:
    """What the program says of its knobs: user code is behind it."""
    import ast

    try:
        found = json.loads(ast.literal_eval(value))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): facts for name, facts in found.items() if isinstance(facts, dict)}


def _knob_line(name: str, facts: Mapping[str, Any]) -> str:
    bounds = [
        f"{word} {visible(str(facts[word]))}"
        for word in ("min", "max", "choices", "default")
        if facts.get(word) is not None
    ]
    said = f"  ({', '.join(bounds)})" if bounds else ""
    return f"{visible(name)} = {visible(str(facts.get('value')))}{said}"


def _history_line(change: ProgramChange) -> str:
    from nsml.view.program_changes import line
    from nsml.view.times import seconds_of

    return f"#{change.number}  {line(change)}, {ago(time.time() - seconds_of(change.asked_at))}"
