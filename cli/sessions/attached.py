"""Staying with a submitted session to its end: `nsml run` with -f, -i, --rm or --wait."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from cli.confirmation import rule_of
from cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.confirmation import Plan

REMOVES_NOTE = (
    "--rm: this session is removed when it succeeds, with logs, metrics and checkpoints;"
    " it stays if it fails, or if this command ends first"
)


class After(Enum):
    """Action on a session after its end."""

    KEEP = "keep"
    ASK = "ask"
    REMOVE = "remove"


def goes_on(session: Session) -> str:
    """Return the command to follow a detached session's output."""
    return f"session {session.name} continues: nsml logs -f {session.name}"


def stay(
    app: App,
    session: Session,
    *,
    shows: bool = False,
    after: After,
    write_end: Callable[[Session], None] | None = None,
) -> int:
    """Stay with the session to its end; return its exit code. Ctrl-C asks: detach or stop."""
    from cli.sessions.logs import LogReader, LogReaders, code_of_end, end_words, follow_to_end

    reader = LogReaders([LogReader(app, session)], in_place=True) if shows else None
    while True:
        try:
            ended = app.call(lambda client: follow_to_end(client, app, session, shows=reader))
            break
        except KeyboardInterrupt:
            if not _stops(app, session):
                app.say(goes_on(session))
                return ExitCode.INTERRUPTED
            app.call(lambda client: client.sessions.stop(session.id, reason="ctrl-C"))
    app.say(end_words(ended, is_log_shown=shows))
    if reader is not None and not reader.has_shown and not code_of_end(ended):
        app.say("  it printed nothing")
    if write_end is not None:
        write_end(ended)
    _finish(app, ended, after)
    return code_of_end(ended)


def _finish(app: App, ended: Session, after: After) -> None:
    """Remove an ended session, or ask first, or print how to remove it.

    Never raises if the platform does not answer: the end of the session is the result.
    """
    from nsml.client.errors import ClientError
    from nsml.client.streams import ENDED_STATES
    from nsml.v1.sessions_pb2 import SESSION_STATE_SUCCEEDED
    from nsml.view.confirmation import summary

    if after is After.KEEP or ended.state not in ENDED_STATES:
        return
    remove = f"to remove it: nsml rm {ended.name}"
    if after is After.REMOVE and ended.state != SESSION_STATE_SUCCEEDED:
        app.say(f"not removed: it did not succeed; {remove}")
        return
    try:
        # -y does not answer this question: the command did not request the removal.
        asks = after is After.ASK
        if asks and (not app.can_ask or app.flags.says_yes):
            app.say(f"its results are kept; {remove}")
            return
        plan = app.call(lambda client: _removal(client, ended))
        if asks and not _agrees(app, f"{summary(plan)}?"):
            app.say(f"kept; {remove}")
            return
        app.call(lambda client: client.sessions.remove(ended.id))
    except (ClientError, CommandError) as error:
        app.say(f"not removed: {error}; {remove}")
    else:
        app.say(f"removed {', '.join([ended.name, *plan.loses])}")


def _agrees(app: App, question: str) -> bool:
    """Return whether the answer is yes; Ctrl-C is a no."""
    app.forget_typed()
    try:
        return app.agrees(question, flag="--rm")
    except KeyboardInterrupt:
        app.say("")
        return False


async def _removal(client: Client, ended: Session) -> Plan:
    """Return the plan to remove a session, with all losses."""
    from nsml.client.checkpoints import saved_in
    from nsml.view.confirmation import Plan, losses, target_of

    fresh = await client.sessions.get(ended.id)
    lost = losses([fresh], await saved_in(client, [fresh]))
    return Plan(rule=rule_of("rm"), targets=[target_of(fresh)], user=fresh.owner, loses=lost)


def _stops(app: App, session: Session) -> bool:
    """Return whether the user wants to stop the session; False for a second Ctrl-C, or if nobody can be asked."""
    if not app.can_ask:
        return False
    try:
        answer = app.ask(f"\n{session.name}: detach (d) / stop session (s)? ", flag="-y")
    except KeyboardInterrupt:
        app.say("")
        return False
    return answer.lower().startswith("s")
