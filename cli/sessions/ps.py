"""ps, getid, command: lists and names sessions."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import click

from cli.app import App
from cli.arguments import (
    DATASET,
    FILTER,
    PROJECT,
    WholeRange,
    is_glob,
    session_argument,
)
from cli.exits import CommandError, ExitCode
from cli.group import command, near, pass_app, to_try
from cli.output import write_one
from cli.sessions.listing import is_cut, show
from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.sessions.list_options import Choosing
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session, SessionFilter, SessionState


@command(
    "ps",
    reads=True,
    examples=[
        "nsml ps",
        "nsml ps -a -d mnist",
        "nsml ps --project vision",
        "nsml ps -n 3 -o wide",
        "nsml ps state:running user:@me",
        "nsml ps --filter 'state:run user:kim lr>=1e-3 !baseline'",
        "nsml ps -a --sort -val/acc --fields name,summary.val/acc,arg.lr",
        "nsml ps -w",
        "nsml ps -a -o name",
        "nsml ps -a --submissions",
    ],
)
@click.argument("words", type=FILTER, nargs=-1, metavar="[FILTER]...")
@click.option("-a", "--all", "include_ended", is_flag=True, help="Include ended sessions.")
@click.option(
    "-n", "--last", type=WholeRange(1), metavar="N", help="Only the last N, ended or not."
)
@click.option(
    "-d", "--data", "--dataset", "dataset", type=DATASET, help="Only sessions with this dataset."
)
@click.option("--project", type=PROJECT, metavar="NAME", help="Only sessions of this project.")
@click.option(
    "-s", "--search", metavar="TEXT", help="Search name, memo and arguments; or a glob of names."
)
@click.option("-u", "--user", "users", multiple=True, metavar="USER", help="Only of these users.")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only in these states.")
@click.option(
    "--filter",
    "filters",
    type=FILTER,
    multiple=True,
    metavar="FILTER",
    help="Only sessions that match; FILTER also works without --filter.",
)
@click.option("--submissions", "has_steps", is_flag=True, help="Include the steps of submissions.")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show every change.")
@click.option("--sort", default="", metavar="KEY", help="Sort by this; -KEY: descending.")
@pass_app
def ps(
    app: App,
    *,
    words: tuple[str, ...],
    include_ended: bool,
    last: int | None,
    dataset: str | None,
    project: str | None,
    search: str | None,
    users: tuple[str, ...],
    mine: bool,
    states: tuple[str, ...],
    filters: tuple[str, ...],
    has_steps: bool,
    watch: bool,
    sort: str,
) -> int:
    """List live sessions; with -a all.

    FILTER is terms such as state:run,queued user:@me ds:mnist name:'kim/*/1*' lr>=1e-3 age<2h;
    other words are searched in name, memo, arguments, summary and state. All terms must match; !
    negates a term, and | separates alternatives. --sort takes a column of --fields,
    summary.val/acc, arg.lr, or val/acc and lr alone; --fields takes these, too. nsml-tui has the
    same filters.

    The sessions that predict and evaluate for submissions are listed with --submissions, or a filter that
    names them: submission:ID, submission:'*', type:evaluate.
    """
    from cli.sessions.list_options import Choosing

    filters = (*words, *filters)
    if search and is_glob(search) and not search.startswith("*"):
        # The platform matches full names only: results that do not match the short form are dropped here.
        filters, search = (*filters, f"name:{search}"), f"*{search}"
    lists_all = include_ended or last is not None
    choosing = Choosing(
        filters,
        sort,
        app.flags.fields,
        has_steps=has_steps,
        has_predictions=app.is_nsml_style,
    )
    chosen = wanted(
        users=[*_parts(users), *(["@me"] if mine else [])],
        states=_parts(states),
        dataset=dataset or "",
        project=project or "",
        search=search or "",
        include_ended=lists_all,
    )
    choosing.narrow(chosen)
    if watch:
        if last is not None or include_ended:
            raise CommandError("-w shows live sessions: without -a and -n", code=ExitCode.USAGE)
        from cli.sessions.live_list import watch_list

        watch_list(app, chosen, choosing)
        return ExitCode.OK
    return _list(app, chosen, choosing, last)


def _parts(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.split(",")]


def _list(app: App, chosen: SessionFilter, choosing: Choosing, last: int | None) -> int:
    """List the sessions; return PARTLY if ended ones could not be read."""
    lacks: list[bool] = []
    limit = None if choosing.filters else last
    now = app.clock.time()

    async def fetch(client: Client) -> list[Session]:
        await choosing.know(client)
        every = client.sessions.every(
            chosen,
            limit=limit,
            summary_names=choosing.summary_names(app),
            short=is_cut(app, choosing),
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
    for line in [] if found else choosing.unknown_numbers():
        app.say(line)
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
    """Return the platform's filter; a usage error for an unknown state."""
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
    from nsml.view.filter_fields import STATE_SYNONYMS
    from nsml.view.sessions import REQUEUING, STATE_WORDS

    by_word: dict[str, int] = {}
    for state, word in STATE_WORDS.items():
        if state:
            by_word[word.word.lower()] = by_word[word.code.lower()] = state
    for name in (REQUEUING.word, REQUEUING.code):
        by_word[name.lower()] = SessionState.Value("SESSION_STATE_STOPPING")
    by_word |= {
        name.removeprefix("SESSION_STATE_").lower(): number
        for name, number in SessionState.items()
        if number
    }
    found = by_word.get(text.lower())
    if found is None:
        synonym = STATE_SYNONYMS.get(text.lower())
        nearest = [synonym] if synonym else near(text.lower(), list(by_word))
        raise CommandError(
            f"no such state: {text!r}",
            code=ExitCode.USAGE,
            why="" if nearest else f"there are {', '.join(sorted(by_word))}",
            advice=to_try("nsml ps --state", nearest[:1]),
        )
    return cast("SessionState", found)


@command("getid", reads=True, examples=["nsml getid @last", "nsml getid kim/mnist/3"])
@session_argument()
@pass_app
def getid(app: App, *, session: str) -> None:
    """Print a session's id: opaque, and never reused."""
    found = app.call(lambda client: client.sessions.get(session))
    write_one(app, {"name": found.name, "id": found.id}, [found.id], name="id")


@command("command", examples=["nsml command @last", "nsml command kim/mnist/3"])
@session_argument()
@pass_app
def repeat(app: App, *, session: str) -> None:
    """Print the command line that repeats a session, ready for a shell."""
    from nsml.common.shell import shell_note
    from nsml.view.sessions import repeat_words

    found = app.call(lambda client: client.sessions.get(session))
    words = repeat_words(found)
    app.write(shell_line(words))
    if note := shell_note(words):
        app.say(f"note: {note}")
