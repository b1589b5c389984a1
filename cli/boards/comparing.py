"""board diff: how the entry above differs from one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from cli.app import App
from cli.arguments import WholeRange
from cli.boards.options import name_argument, per_option, selection_of
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from nsml.common.shell import shell_split, shell_word
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.boards_pb2 import BoardEntry
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.scores import Digits


class _Pair(NamedTuple):
    """Two entries to compare; `are_visible`: the caller may see both sessions."""

    own: BoardEntry
    other: BoardEntry
    are_visible: bool


@command(
    "diff",
    reads=True,
    examples=["nsml board diff digits", "nsml board diff lee/digits 1 --per none"],
)
@name_argument()
@click.argument("rank", type=WholeRange(1), required=False)
@per_option
@click.pass_context
@pass_app
def diff(app: App, context: click.Context, *, name: str, rank: int | None, per: str | None) -> int:
    """Compare your best entry with the one above it.

    Or with that of RANK. Arguments, reported config, code, data, settings and metrics, as nsml diff has them; of a session that
    you may not see, its arguments as the board shows them.
    """
    from cli.sessions.diff import diff as diff_sessions
    from nsml.view.ranked_rows import scores_of
    from nsml.view.scores import digits_of

    pair = app.call(lambda client: _find(client, name, rank, per))
    entries = (pair.own, pair.other)
    digits = digits_of(scores_of("score", entries))
    for entry in entries:
        app.say(visible(_line(entry, digits)))
    if pair.are_visible:
        references = (pair.own.session_id, pair.other.session_id)
        result = context.invoke(diff_sessions, references=references, with_metrics=True)
        return int(result)
    app.say(visible(f"({pair.other.session} is not visible to you: its arguments alone)"))
    _compare_arguments(app, pair)
    return ExitCode.OK


async def _find(client: Client, name: str, rank: int | None, per: str | None) -> _Pair:
    """Return the entries to compare. Raises CommandError if there is no own entry, or none above."""
    from nsml.client.errors import Denied, NotFound

    selection = selection_of(per=per)
    answer = await client.boards.entries(name, selection)
    ranked = [one for one in answer.entries if one.rank]
    own = min((one for one in ranked if one.is_own), key=lambda one: one.rank, default=None)
    if own is None:
        # The board's own list may be shorter than the number of its entries.
        mine = (await client.boards.entries(name, selection._replace(own_only=True))).entries
        own = min((one for one in mine if one.rank), key=lambda one: one.rank, default=None)
    if own is None:
        raise CommandError(
            f"you have no ranked entry on {visible(name)}",
            code=ExitCode.NOT_FOUND,
            advice=f"nsml board show {shell_word(name)} --mine",
        )
    other = _other(ranked, own, rank, name)
    try:
        # Of both: a removed session of one's own has an entry, too.
        for entry in (own, other):
            await client.sessions.get(entry.session_id)
    except (Denied, NotFound):
        return _Pair(own, other, are_visible=False)
    return _Pair(own, other, are_visible=True)


def _other(
    ranked: Sequence[BoardEntry], own: BoardEntry, rank: int | None, name: str
) -> BoardEntry:
    """Return the entry of a rank, else the next above one's own."""
    if rank is not None:
        found = next((one for one in ranked if one.rank == rank), None)
        if found is None or _is_same(found, own):
            raise CommandError(
                f"rank {rank} is your own entry" if found else f"there is no rank {rank}",
                code=ExitCode.USAGE if found else ExitCode.NOT_FOUND,
                advice=f"nsml board show {shell_word(name)}",
            )
        return found
    above = [one for one in ranked if one.rank < own.rank]
    if not above:
        raise CommandError(
            "your entry is the best: there is none above it",
            code=ExitCode.NOT_FOUND,
            advice=f"nsml board diff {shell_word(name)} 2    compares it with the second",
        )
    return max(above, key=lambda one: one.rank)


def _is_same(one: BoardEntry, other: BoardEntry) -> bool:
    return (one.session_id, one.submission_id) == (other.session_id, other.submission_id)


def _line(entry: BoardEntry, digits: Digits) -> str:
    """Return `#2 kim (you) 0.9855 kim/digits/3 best`."""
    from nsml.view import boards as view
    from nsml.view.scores import score_text

    score = score_text(entry.score, digits) if entry.HasField("score") else "-"
    return f"#{entry.rank} {view.owner_text(entry)} {score} {entry.session} {entry.checkpoint}".rstrip()


def _compare_arguments(app: App, pair: _Pair) -> None:
    from cli.sessions.diff import write_rows
    from nsml.view import compare

    sessions = [_supposed(pair.own), _supposed(pair.other)]
    rows = [row for row in compare.asked(sessions) if row.kind is compare.Kind.ARGUMENT]
    write_rows(app, sessions, [row for row in rows if row.differs], has_any=True)


def _supposed(entry: BoardEntry) -> Session:
    """Return a session with what the board shows of it."""
    from nsml.v1.sessions_pb2 import Session, SessionSpec

    try:
        words = shell_split(entry.args)
    except ValueError:
        words = entry.args.split()
    return Session(name=entry.session, owner=entry.owner, spec=SessionSpec(args=words))
