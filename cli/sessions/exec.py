"""exec: evaluates code in the running program of a session."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.arguments import WholeRange, session_argument
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, command, pass_app
from cli.output import write_list
from cli.sessions.replicas import RANK, replica_of
from nsml.common.units import duration_text
from nsml.spec import evaluation
from nsml.view.evaluation import AnswerKind, answer_lines, progress_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Evaluated, EvaluateResponse

_PATIENCE_S: Final = 2.0
"""Delay before the waiting reason is printed, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The result in one replica; `why_not`: the reason if there is none."""

    rank: int
    evaluated: Evaluated | None = None
    why_not: str = ""


@command(
    "exec",
    reads=True,
    examples=[
        "nsml exec @last 'optimizer.param_groups[0][\"lr\"]'",
        "nsml exec kim/mnist/3 'nsml.infer(\"a sentence\")' --limit 30s",
        "nsml exec 12:1 - < look.py",
        "nsml exec 12 'loss.item()' --all -j",
    ],
)
@session_argument(metavar="SESSION[:RANK]")
@click.argument("expression", metavar="CODE")
@click.option("--rank", type=RANK, metavar="R", help="In this replica.")
@click.option("--all", "is_for_all", is_flag=True, help="In every replica.")
@click.option(
    "--local-rank",
    type=WholeRange(0),
    default=0,
    metavar="R",
    help="In the replica's process with this LOCAL_RANK, where torchrun or a similar launcher starts several.",
)
@click.option(
    "--limit",
    "limit_s",
    type=DURATION,
    default=evaluation.USUAL_LIMIT_S,
    metavar="TIME",
    help="Interrupt it after this time; 1m at most.  [default: 5s]",
)
@click.option(
    "--wait",
    "wait_s",
    type=DURATION,
    default=evaluation.USUAL_WAIT_S,
    metavar="TIME",
    help="Give up if the program reaches no safe point within this time; 1h at most.  [default: 1m]",
)
@pass_app
def exec_(
    app: App,
    *,
    session: str,
    expression: str,
    rank: int | None,
    is_for_all: bool,
    local_rank: int,
    limit_s: float,
    wait_s: float,
) -> int:
    """Evaluate Python code in a running program.

    For a shell or a program in the session: nsml sh.

    The program evaluates it at its next safe point: a call of nsml.report, nsml.save or nsml.step,
    the end of a step of nsml.steps, or a step of a torch optimizer. Training waits for it
    meanwhile. The code sees the variables of the program's last nsml.report(scope=locals()), else
    those at the safe point. It runs in a thread of its own; what it raises does not reach the
    program. What it assigns is kept for later calls and does not change variables of the program;
    objects can be changed.

    The value of the last line is printed; "-" reads the code from stdin. The exit code is 1 if
    it raised an exception or was interrupted. Own sessions; administrators all.
    """
    given = session
    session, first = replica_of(given, rank)
    if is_for_all and (rank is not None or session != given):
        raise click.UsageError("--all and a rank exclude each other")
    for option, asked_s, most_s in (
        ("--limit", limit_s, evaluation.LONGEST_LIMIT_S),
        ("--wait", wait_s, evaluation.LONGEST_WAIT_S),
    ):
        if asked_s > most_s:
            raise click.UsageError(f"{option} is {duration_text(most_s)} at most")
    code = _read(app) if expression == "-" else expression
    if not code.strip():
        raise click.UsageError("there is no code to evaluate")

    async def run(client: Client) -> Sequence[_Result]:
        chosen = await client.sessions.get(session)
        ranks = sorted(one.rank for one in chosen.replicas) if is_for_all else [first]

        async def evaluated(rank: int) -> _Result:
            from nsml.client.errors import NotEnough, StateConflict, Unavailable

            patience = _Patience(app, f"rank {rank}: " if len(ranks) > 1 else "", limit_s)
            try:
                with patience:
                    found = await client.sessions.evaluate(
                        chosen.id,
                        code,
                        rank=rank,
                        local_rank=local_rank,
                        limit_s=limit_s,
                        wait_s=wait_s,
                        told=patience.hear,
                    )
            except (NotEnough, StateConflict, Unavailable) as error:
                if len(ranks) == 1:
                    raise
                return _Result(
                    rank=rank, why_not=": ".join(filter(None, (error.message, error.why)))
                )
            return _Result(rank=rank, evaluated=found)

        return await asyncio.gather(*map(evaluated, ranks or [0]))

    results = app.call(run, waits=False)
    _write(app, results, limit_s)
    done = sum(map(_is_done, results))
    if done == len(results):
        return ExitCode.OK
    return ExitCode.PARTLY if done else ExitCode.FAILED


class _Patience:
    """Prints the reason of a long wait, and the state of the code after an interrupt."""

    def __init__(self, app: App, of: str, limit_s: float) -> None:
        self._app = app
        self._of = of
        self._limit_s = limit_s
        self._has_begun = False
        self._words = "waiting for the node"
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if kind is not None and not issubclass(kind, Exception):  # Ctrl-C, --timeout
            self._say_left()

    def hear(self, response: EvaluateResponse) -> None:
        """Handle progress."""
        self._end()
        self._words = progress_text(response)
        self._has_begun = response.WhichOneof("kind") == "runs"
        self._begin()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._say)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._app.say(f"{self._of}{self._words}...")

    def _say_left(self) -> None:
        """Print what happens to the code: the node withdraws code not started, the time limit ends the rest."""
        words = "withdrawn: the program had not begun to evaluate it"
        if self._has_begun:
            limit = duration_text(self._limit_s)
            words = f"the code goes on for up to {limit} (--limit), and the program waits for it"
        self._app.say(f"{self._of}{words}")


def _read(app: App) -> str:
    try:
        return app.stdin.read()
    except UnicodeDecodeError:
        raise CommandError("the code on stdin is not UTF-8", code=ExitCode.USAGE) from None


def _is_done(result: _Result) -> bool:
    found = result.evaluated
    return found is not None and not found.error and not found.is_late


def _write(app: App, results: Sequence[_Result], limit_s: float) -> None:
    if not app.is_for_people:
        write_list(app, results, columns=(), record=_record, name="value")
        return
    for result in results:
        of = f"rank {result.rank}: " if len(results) > 1 else ""
        found = result.evaluated
        if found is None:
            app.say(f"{of}{result.why_not}")
            continue
        for kind, line in answer_lines(found, limit_s):
            match kind:
                case AnswerKind.OUTPUT | AnswerKind.VALUE:
                    app.write(of + line)
                case AnswerKind.NOTE:
                    app.say(of + line)
                case AnswerKind.ERROR:
                    app.stderr.write(of + line + "\n")


def _record(result: _Result) -> dict[str, Any]:
    found = result.evaluated
    return {
        "rank": result.rank,
        "value": found.value if found is not None and found.HasField("value") else None,
        "output": None if found is None else found.output,
        "error": (result.why_not if found is None else found.error) or None,
        "is_late": None if found is None else found.is_late,
        "is_cut": None if found is None else found.is_cut,
        "hides": None if found is None else [*found.hides],
        "took_s": None if found is None else found.took.ToNanoseconds() / 1e9,
    }
