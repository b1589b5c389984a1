"""infer: a session that answers with a checkpoint."""

from __future__ import annotations

from typing import Any

import click

from cli.group import SplitCommand, command
from cli.sessions.fork import repeats, submit_repetition
from cli.sessions.repetition import NEWEST


@command(
    "infer",
    reads=True,
    cls=SplitCommand,
    examples=[
        "nsml infer kim/mnist/3 best",
        "nsml infer -g 1 @last",
        "nsml infer --time-limit 2h mnist/3 epoch-9",
    ],
)
@repeats
def infer(context: click.Context, /, **given: Any) -> int:
    """Start a session that loads a checkpoint of SESSION and waits for inputs; without CHECKPOINT the newest.

    Code, data and settings are those of SESSION; the program also gets --pause 1, and stays in
    nsml.paused(). Ask it with nsml exec SESSION 'nsml.infer(data)'. It holds its GPUs until
    nsml stop, or its --time-limit.
    """
    checkpoint = given.pop("checkpoint") or NEWEST
    return submit_repetition(context, given, checkpoint)


infer.params.insert(
    1, click.Argument(["checkpoint"], required=False, metavar="[CHECKPOINT]", default="")
)
infer.params.append(
    click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        help="Accepted for NSML: what is changed, and not pinned, is always shown.",
    )
)
