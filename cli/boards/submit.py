"""submit: a checkpoint to the hidden test set of its dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App, new_request_id
from cli.arguments import WholeRange, session_argument
from cli.exits import ExitCode
from cli.group import command, pass_app
from cli.output import write_one
from nsml.common.shell import shell_line
from nsml.common.text import visible

if TYPE_CHECKING:
    from nsml.client.errors import LimitReached

_NEWEST = "@last"
_MOST_BATCH = (1 << 32) - 1
_SEE = "nsml submission ls    shows whether it was submitted all the same"


@command(
    "submit",
    reads=True,
    examples=[
        "nsml submit @last",
        "nsml submit kim/mnist/3 best",
        "nsml submit -t kim/mnist/3 best",
        "nsml submit --no-wait kim/mnist/3 best",
    ],
)
@session_argument()
@click.argument("checkpoint", metavar="[CHECKPOINT]", default="")
@click.option(
    "-t",
    "--test",
    "is_test",
    is_flag=True,
    help="A dry run on a few open inputs: shows what the program prints, and counts for no limit.",
)
@click.option(
    "-b",
    "--batch",
    type=WholeRange(1, _MOST_BATCH),
    metavar="N",
    help="Batch size for the dataset's loader, and the variable NSML_BATCH.",
)
@click.option("--no-wait", is_flag=True, help="Print the submission's id, and do not wait.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    help="Accepted for NSML: each step is always shown.",
)
@pass_app
def submit(
    app: App, *, session: str, checkpoint: str, is_test: bool, batch: int | None, no_wait: bool
) -> int:
    """Submit a checkpoint of SESSION to its dataset's board; without CHECKPOINT the newest.

    The program starts with its arguments and --mode test --pause 1, loads the checkpoint, and
    predicts on the hidden test inputs in a session without a network. Then the dataset's evaluation
    scores the prediction. The result is the score and the rank, in a competition that of your team. Ctrl-C leaves it running.

    Programs take --mode and --pause. Before they train they call nsml.bind(save=save, load=load,
    infer=infer) and, if --pause is 1, nsml.paused(scope=locals()).

    infer gets what the dataset's data_loader.py passes to it (nsml dataset pull), and returns what
    that expects: without a feed_infer a pair for each input, [(1.0, prediction), ...].
    docs/programs.md has a whole program.

    A failure names its cause. Nobody reads the output of a submission: -t shows that of a dry run,
    on the dataset's small open split, or ten rows. A board may limit how often you submit; nsml board info
    NAME says how.
    """
    from cli.boards.following import follow
    from nsml.client.errors import LimitReached, Unavailable
    from nsml.view import boards as view

    name = "" if checkpoint == _NEWEST else checkpoint
    request_id = new_request_id()
    try:
        made = app.call(
            lambda client: client.submissions.create(
                session, name, request_id=request_id, is_test=is_test, batch=batch or 0
            )
        )
    except KeyboardInterrupt:
        app.say("")
        app.say(_SEE)
        return ExitCode.INTERRUPTED
    except LimitReached as error:
        _advise(app, error, session, checkpoint)
        raise
    except Unavailable as error:
        error.advice = "\n".join(filter(None, (error.advice, _SEE)))
        raise
    what = "dry run" if made.is_test else "submission"
    team = f" for team {made.team}" if made.team else ""
    app.say(
        visible(
            f"{what} {made.id}: checkpoint {made.checkpoint} of {made.session}"
            f" to {made.dataset}{team}"
        )
    )
    if no_wait:
        write_one(app, view.submission_record(made), [made.id], name="id")
        return ExitCode.OK
    return follow(app, made, shows_output=is_test)


def _advise(app: App, error: LimitReached, session: str, checkpoint: str) -> None:
    """Say when the next submission is permitted, and what has no limit."""
    from nsml.view import boards as view

    words = ["nsml", "submit", "-t", session, *([checkpoint] if checkpoint else [])]
    at = error.next_at
    if at is not None:
        error.why = "\n".join(filter(None, (error.why, view.next_text(at, app.clock.time()))))
        error.advice = ""
    dry_run = f"{shell_line(words)}    a dry run has no limit"
    error.advice = "\n".join(filter(None, (error.advice, dry_run)))
