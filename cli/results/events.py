"""events, eventlen: the reported values."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, Format
from cli.arguments import NUMBER, WholeRange, session_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list
from cli.results.metric_options import (
    EVENT_COLUMNS,
    Downsample,
    Event,
    ask_known,
    attempts_option,
    check_attempts,
    check_there,
    chosen,
    event_record,
    from_log_option,
    let_go_words,
    no_numbers_words,
    nothing_by,
    nothing_in_log,
    rank_options,
    reduce_option,
    reduced,
    tell_let_go,
    tell_missing,
    tell_simulated,
)
from nsml.common.shell import operands
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

_PATIENCE_S = 30.0
_LINE_BY_LINE = {Format.CSV, Format.JSONL, Format.NAME}
"""Formats with independent lines: values are written as they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Selection of a session's values."""

    names: tuple[str, ...] = ()
    since_step: float | None = None
    rank: int | None = None
    attempt: int | None = None
    is_apart: bool = False
    from_log: tuple[str, ...] = ()

    @property
    def has_all(self) -> bool:
        """Whether to include points superseded by a later attempt."""
        return self.is_apart or self.attempt is not None

    def of(self, events: list[Event]) -> list[Event]:
        found = chosen(events, self.rank, self.attempt)
        if self.since_step is None:
            return found
        return [e for e in found if e.point.HasField("step") and e.point.step >= self.since_step]


async def _stream(
    app: App, client: Client, session: Session, wanted: _Wanted, *, follow: bool = False
) -> AsyncGenerator[list[Event], None]:
    from nsml.client.log_points import read_points

    missing = 0
    stream = read_points(
        client,
        session,
        from_log=wanted.from_log,
        names=wanted.names,
        follow=follow,
        all_attempts=wanted.has_all,
        patience_s=None if follow else _PATIENCE_S,
        on_link=app.link_words(),
    )
    async with aclosing(stream):
        async for answer in stream:
            missing += answer.missing_reports
            tell_let_go(app, answer.let_go, session.name)
            if follow:
                tell_missing(app, missing, session.name)
            yield wanted.of([Event(session.name, point) for point in answer.points])
    tell_missing(app, missing, session.name)


@command(
    "events",
    reads=True,
    examples=[
        "nsml events @last",
        "nsml events @last train/loss -o csv",
        "nsml events @last 'val/*' --limit 10 -o jsonl",
        "nsml events @last train/loss -f",
        "nsml events @last train/loss --reduce mean",
        "nsml events @last 'val/*' --downsample 100",
        "nsml events @last --from-log auto",
    ],
)
@session_argument()
@click.argument("metric", required=False)
@click.option("--limit", type=WholeRange(1), metavar="N", help="Only the last N values.")
@click.option("--since-step", type=NUMBER, metavar="STEP", help="From this step on.")
@click.option("-f", "--follow", is_flag=True, help="Follow until the session ends.")
@rank_options
@attempts_option
@from_log_option
@reduce_option
@click.option(
    "--downsample",
    type=WholeRange(2),
    metavar="N",
    help="At most N values of each metric, attempt and replica; keeps min and max.",
)
@pass_app
def events(
    app: App,
    *,
    session: str,
    metric: str | None,
    limit: int | None,
    since_step: float | None,
    follow: bool,
    rank: int | None,
    attempt: int | None,
    is_apart: bool,
    from_log: tuple[str, ...],
    how: str | None,
    downsample: int | None,
) -> None:
    """Print the reported values, in order. METRIC may be a glob in quotes.

    If an attempt repeats steps of an earlier one, its values replace those. --reduce merges the
    values that the replicas of a gang reported for one step.
    """
    check_attempts(attempt, is_apart=is_apart)
    wanted = _Wanted(
        names=(metric,) if metric else (),
        since_step=since_step,
        rank=rank,
        attempt=attempt,
        is_apart=is_apart,
        from_log=from_log,
    )
    if follow:
        _check_follows(app, limit or downsample, how)
    is_streamed = follow or (app.format in _LINE_BY_LINE and not (limit or how or downsample))

    async def show(client: Client) -> tuple[Session, list[Event], bool, str]:
        found = await client.sessions.get(session)
        kept: deque[Event] = deque(maxlen=None if how else limit)
        fewer = Downsample(downsample) if downsample and not how else None
        has_any = False
        async with aclosing(_stream(app, client, found, wanted, follow=follow)) as stream:
            async for some in stream:
                has_any |= bool(some)
                if fewer is not None:
                    fewer.add(some)
                elif not is_streamed:
                    kept.extend(some)
                elif some:
                    _write(app, some)
                    app.flags.has_header = False
                    app.stdout.flush()
        gone = "" if has_any or from_log else await let_go_words(app, client, [found])
        return found, list(kept) if fewer is None else fewer.events(), has_any, gone

    found, kept, has_any, gone = app.call(show)
    if not has_any:
        _check_nothing(app, found, session, wanted)
    _tell_beside(app, found, has_any=has_any)
    if not is_streamed or not has_any:
        shown = _reduced(found, kept, wanted, how)
        if how and downsample:
            shown = _downsampled(shown, downsample)
        _write(app, shown[-limit:] if limit else shown, none=gone or _nothing(wanted, found, kept))


def _reduced(session: Session, kept: list[Event], wanted: _Wanted, how: str | None) -> list[Event]:
    """Reduce the events. Raises CommandError if the named metrics hold no numbers."""
    shown = reduced(kept, how)
    if kept and not shown and wanted.names:
        raise CommandError(_nothing(wanted, session, kept), code=ExitCode.NOT_FOUND)
    return shown


def _downsampled(found: list[Event], most: int) -> list[Event]:
    fewer = Downsample(most)
    fewer.add(found)
    return fewer.events()


def _check_nothing(app: App, found: Session, given: str, wanted: _Wanted) -> None:
    """Raise CommandError if nothing was found since the metric, replica or attempt does not exist."""
    if wanted.names and not wanted.from_log:
        ask_known(
            app, [given], wanted.names, lambda session, name: ["events", *operands(session, name)]
        )
    check_there([found], wanted.rank, wanted.attempt)


def _check_follows(app: App, limit: int | None, how: str | None) -> None:
    if limit or how:
        raise click.UsageError(
            "-f shows values as they come: without --limit, --reduce and --downsample"
        )
    if app.format in {Format.JSON, Format.YAML}:
        raise CommandError(
            f"-f writes line by line, not as {app.format.value}",
            code=ExitCode.USAGE,
            advice="nsml events ... -f -o jsonl",
        )


def _nothing(wanted: _Wanted, session: Session, kept: Sequence[Event] = ()) -> str:
    """Return why there is nothing to show; `kept` was left out since it is not numeric."""
    if kept:
        return no_numbers_words(session.name, sorted({event.point.name for event in kept}))
    if wanted.from_log:
        return nothing_in_log(wanted.from_log)
    if wanted.since_step is not None:
        return f"nothing from step {wanted.since_step:g} on"
    return nothing_by(wanted.rank, wanted.attempt, [session])


def _write(app: App, found: list[Event], none: str = "") -> None:
    write_list(app, found, columns=EVENT_COLUMNS, record=event_record, name="metric", none=none)


def _tell_beside(app: App, session: Session, *, has_any: bool) -> None:
    """Report simulated GPUs, and the ends of earlier attempts: why steps are missing or repeated.

    `has_any`: there are values.
    """
    if not app.is_for_people:
        return
    from nsml.common.text import visible
    from nsml.view.sessions import attempt_lines, lost_text

    if has_any:
        tell_simulated(app, session)
    if lost := lost_text(session):
        app.say(lost)
    for line in attempt_lines(session):
        app.say(visible(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Length:
    """The number of a metric's values; attempt and rank if counted separately."""

    name: str
    count: int
    origin: str = ""
    attempt: int | None = None
    rank: int | None = None


_COLUMNS: tuple[Column[_Length], ...] = (
    Column(key="name", title="Metric", cell=lambda one, _: one.name, is_name=True),
    Column(key="count", title="Count", cell=lambda one, _: f"{one.count:,}"),
)
_ORIGIN: Column[_Length] = Column(
    key="origin",
    title="Origin",
    cell=lambda one, _: one.origin or "-",
    is_wide=True,
    is_worth=lambda one: one.origin != "",
    is_optional=True,
)
_COLUMNS_APART: tuple[Column[_Length], ...] = (
    *_COLUMNS,
    Column(key="attempt", title="Attempt", cell=lambda one, _: str(one.attempt)),
    Column(key="rank", title="Rank", cell=lambda one, _: str(one.rank)),
)


@command(
    "eventlen",
    reads=True,
    examples=[
        "nsml eventlen @last",
        "nsml eventlen kim/mnist/3 -o json",
        "nsml eventlen @last --per-rank",
    ],
)
@session_argument()
@click.option("--per-rank", is_flag=True, help="Count per replica and attempt.")
@rank_options
@pass_app
def eventlen(
    app: App, *, session: str, per_rank: bool, rank: int | None, attempt: int | None
) -> None:
    """Count the reported values by metric, over all attempts. --per-rank reads all values."""
    is_apart = per_rank or rank is not None or attempt is not None

    wanted = _Wanted(rank=rank, attempt=attempt, is_apart=True)

    async def count(client: Client) -> tuple[Session, str, list[_Length]]:
        found = await client.sessions.get(session)
        gone = await let_go_words(app, client, [found])
        if not is_apart:
            metrics = await client.sessions.metrics(found.id)
            return (
                found,
                "",
                [
                    _Length(name=metric.name, count=metric.count, origin=metric.origin)
                    for metric in metrics
                ],
            )
        counts: Counter[tuple[str, int, int]] = Counter()
        async with aclosing(_stream(app, client, found, wanted)) as stream:
            async for some in stream:
                counts.update((e.point.name, e.point.attempt, e.point.rank) for e in some)
        if not counts:
            check_there([found], rank, attempt)
        return (
            found,
            gone,
            [
                _Length(name=name, count=number, attempt=one, rank=by)
                for (name, one, by), number in sorted(counts.items())
            ],
        )

    def record(one: _Length) -> dict[str, Any]:
        apart: dict[str, Any] = {"origin": one.origin or None}
        if is_apart:
            apart = {"attempt": one.attempt, "rank": one.rank}
        return {"name": one.name, "count": one.count, **apart}

    found, gone, lengths = app.call(count)
    if lengths:
        tell_simulated(app, found)
    write_list(
        app,
        lengths,
        columns=_COLUMNS_APART if is_apart else (*_COLUMNS, _ORIGIN),
        record=record,
        none=gone or _nothing(wanted, found),
    )
