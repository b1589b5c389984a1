"""fork, resume, rerun: new sessions from the record of another one, without an upload."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from cli.arguments import flag_options, session_argument
from cli.exits import CommandError, ExitCode
from cli.group import SplitCommand, command
from cli.sessions.repetition import NEWEST, Source
from cli.sessions.run import asking_options, staying_options, submit
from nsml.common.shell import option_words, shell_line

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_RUN: Final = {
    "positional": None,
    "sends_code": False,
    "max_size": None,
    "rehash": False,
}
"""Parameters of `run` alone: no folder."""
_flag_options = partial(flag_options, shows_defaults=False, cpus=("--cpus", "--cpu"))
"""NSML uses -c for the checkpoint here."""


def repeats(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the parameters of all commands that repeat a session."""
    for add in (click.pass_context, staying_options, asking_options, _flag_options):
        function = add(function)
    return session_argument()(function)


def submit_repetition(
    context: click.Context, given: dict[str, Any], checkpoint: str | None = None
) -> int:
    """Run such a command; `checkpoint`: the initial one of the new session, None for that of the other."""
    kind = str(context.command.name)
    session = given.pop("session")
    source = Source(session, kind, ("nsml", kind), checkpoint)
    return submit(context, {**_OF_RUN, **given}, source)


@command(
    "fork",
    reads=True,
    cls=SplitCommand,
    examples=[
        "nsml fork mnist/3",
        "nsml fork mnist/3 -c best -- --lr 0.01",
        "nsml fork kim/mnist/3 -c @last -g 4 -a '--epochs 40'",
    ],
)
@repeats
def fork(context: click.Context, /, **given: Any) -> int:
    """Start a session from another one's code, dataset versions and settings.

    Nothing is sent: flags and arguments that are given replace those of SESSION, arguments all
    together. With -c it begins with that checkpoint of SESSION (@last: the newest): the program's
    first nsml.bind loads it, as after a requeue, and if it was written for NSML it gets --pause 1 --iteration
    CHECKPOINT. Without, it begins as SESSION did.

    It says by name what could not be pinned: what may be another one this time. What was changed in
    SESSION while it ran (nsml set, nsml load) is named, and not repeated.
    """
    checkpoint = given.pop("checkpoint")
    if checkpoint == "":
        raise click.UsageError("-c names no checkpoint: leave it out, or @last for the newest")
    return submit_repetition(context, given, checkpoint)


fork.params.insert(
    1,
    click.Option(
        ["-c", "--checkpoint"],
        metavar="CHECKPOINT",
        help=f"Begin with this checkpoint of SESSION; {NEWEST}: the newest.",
    ),
)


fork.params.append(
    click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        help="Accepted for NSML: what is changed, and not pinned, is always shown.",
    )
)


@command(
    "resume",
    reads=True,
    cls=SplitCommand,
    examples=["nsml resume @last", "nsml resume mnist/3 -g 4 --time-limit 8h"],
)
@repeats
def resume(context: click.Context, /, **given: Any) -> int:
    """Go on with an ended session from its newest checkpoint, as a new session.

    The new session has the next number; code, data and settings are those of SESSION, except for
    what is given. The same as nsml fork SESSION -c @last. Sessions that have not ended go on by
    themselves: nsml requeue, nsml continue.
    """
    _refuse_checkpoint("resume", given)
    return submit_repetition(context, given, NEWEST)


@command(
    "rerun",
    reads=True,
    cls=SplitCommand,
    examples=["nsml rerun @last", "nsml rerun mnist/3 -g 2 -- --lr 0.02"],
)
@repeats
def rerun(context: click.Context, /, **given: Any) -> int:
    """Run a session again: the same code, dataset versions, arguments and settings.

    Flags and arguments that are given replace those of SESSION. The same as nsml fork SESSION
    without a checkpoint.
    """
    _refuse_checkpoint("rerun", given)
    return submit_repetition(context, given)


def _refuse_checkpoint(kind: str, given: dict[str, Any]) -> None:
    """Refuse NSML's `resume -c`, and a mistaken `-c`: only fork takes it."""
    checkpoint = given.pop("checkpoint")
    if checkpoint is not None:
        raise CommandError(
            f"nsml {kind} takes no checkpoint",
            code=ExitCode.USAGE,
            why="it begins with the newest one"
            if kind == "resume"
            else "it begins as the session did",
            advice=shell_line(
                ["nsml", "fork", given["session"], *option_words("-c", checkpoint or NEWEST)]
            ),
        )


for each in (resume, rerun):
    each.params.insert(1, click.Option(["-c", "--checkpoint"], hidden=True))
