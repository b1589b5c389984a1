"""Shared parts of commands on reported values: options, rows, and selection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from glob import escape
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from cli.app import App
from cli.arguments import WholeRange
from cli.exits import CommandError, ExitCode
from cli.group import BadValue, near
from nsml.common.shell import operands, shell_line, shell_word
from nsml.common.units import counted, whole
from nsml.view.elements import reported
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Metric, MetricPoint, Session

F = TypeVar("F", bound="Callable[..., Any] | click.Command")
MOST_LISTED = 10_000
"""Most metrics listed for a session: further ones are stored, but not counted."""
_NAME_CELLS = 24
_NUMBER_CELLS = 10
"""Width of any number with three digits: -1.23e-300."""
_SHOWN = 10
"""Most metrics named in an error."""


@dataclass(frozen=True, slots=True)
class Event:
    """A reported value with its session."""

    session: str
    point: MetricPoint
    ranks: int = 0
    """Number of replicas reduced to this value; 0: it is one replica's own."""


def metric_option(name: str = "metrics", *also: str) -> Callable[[F], F]:
    """Add the parameter `name`: globs over names of metrics, or similar names; `also`: further option names."""
    return click.option(
        "-m",
        "--metric",
        *also,
        name,
        multiple=True,
        metavar="GLOB",
        help="Only matching metrics; repeatable.",
    )


def from_log_option(command: F) -> F:
    """Add `from_log`: requests for metrics out of the log; empty: those that were reported."""
    return click.option(
        "--from-log",
        "from_log",
        type=_FromLog(),
        multiple=True,
        metavar="auto|NAME=PATTERN",
        help="Numbers that it printed, as run --metric finds them, instead of reported ones; repeatable.",
        callback=_checked_together,
    )(command)


class _FromLog(click.ParamType[str]):
    """A request for metrics out of a log."""

    name = "auto|NAME=PATTERN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        _check_requests([value], param, ctx)
        return str(value)


def _checked_together(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> Sequence[str]:
    values = tuple(dict.fromkeys(values))
    _check_requests(values, param, ctx)
    return values


def _check_requests(
    texts: Sequence[str], param: click.Parameter | None, ctx: click.Context | None
) -> None:
    if not texts:
        return
    from nsml.log_metrics import patterns

    try:
        patterns.check_all(texts)
    except ValueError as error:
        message, _, why = str(error).partition(": ")
        example = shell_word(patterns.EXAMPLE)
        raise BadValue(
            message,
            param,
            ctx,
            why=why,
            advice=f"nsml plot SESSION --from-log auto\nnsml plot SESSION --from-log {example}",
        ) from None


def rank_options(command: F) -> F:
    """Add `rank` and `attempt`: None for all."""
    rank = click.option(
        "--rank",
        type=WholeRange(0, instead="without --rank: all of them"),
        metavar="N",
        help="Only this replica.",
    )
    attempt = click.option(
        "--attempt",
        type=WholeRange(1, instead="--attempts    all of them, each apart"),
        metavar="N",
        help="Only this attempt.",
    )
    return rank(attempt(command))


def attempts_option(command: F) -> F:
    """Add `is_apart`: whether to show points superseded by a later attempt."""
    return click.option(
        "--attempts",
        "is_apart",
        is_flag=True,
        help="Show every attempt separately, repeated steps too.",
    )(command)


def check_attempts(attempt: int | None, *, is_apart: bool) -> None:
    """Raise click.UsageError if one attempt and all of them are requested."""
    if is_apart and attempt is not None:
        raise click.UsageError("--attempt N shows one attempt, --attempts all of them: not both")


def reduce_option(command: F) -> F:
    """Add `how`: the name of a reduction, or None."""
    return click.option(
        "--reduce",
        "how",
        type=click.Choice(["mean", "min", "max", "sum"]),
        help="Merge the values of all replicas for each step.",
    )(command)


def chosen(events: Sequence[Event], rank: int | None, attempt: int | None) -> list[Event]:
    """Return the events of one replica, of one attempt, or of both."""
    return [
        event
        for event in events
        if rank in {None, event.point.rank} and attempt in {None, event.point.attempt}
    ]


def reduced(events: Sequence[Event], how: str | None) -> list[Event]:
    """Reduce the events over replicas; unchanged without `how`."""
    if how is None:
        return list(events)
    from nsml.view.ranks import Reduction, over_ranks

    by_session: dict[str, list[MetricPoint]] = {}
    for event in events:
        by_session.setdefault(event.session, []).append(event.point)
    return [
        Event(session, point, ranks)
        for session, points in by_session.items()
        for point, ranks in over_ranks(points, Reduction(how))
    ]


class Downsample:
    """Downsample each metric, attempt and replica to at most `most` values, 2 or more, in bounded memory.

    Each bucket of neighbours keeps its min and max; a non-finite value is kept if its bucket has no finite one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._series: dict[tuple[str, str, int, int], _Thinned] = {}
        """Series by session, metric, attempt and rank."""

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events."""
        for event in events:
            point = event.point
            key = event.session, point.name, point.attempt, point.rank
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = _Thinned(self._most)
            series.add((self._count, event))
            self._count += 1

    def events(self) -> list[Event]:
        """Return the kept events, in order of arrival."""
        every = [one for series in self._series.values() for one in series.kept()]
        return [event for _, event in sorted(every, key=itemgetter(0))]


_Placed: TypeAlias = tuple[int, Event]
"""An event with its index."""


class _Thinned:
    """One series in buckets of equal size, which is doubled when they are full."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._each = 1
        self._last = 0
        """Events in the last bucket."""
        self._buckets: list[list[_Placed]] = []

    def add(self, one: _Placed) -> None:
        """Add the next event."""
        if self._last == self._each or not self._buckets:
            self._buckets.append([])
            self._last = 0
        self._buckets[-1] = _extremes([*self._buckets[-1], one])
        self._last += 1
        # A bucket of one event keeps one, others two.
        while len(self._buckets) > (self._most if self._each == 1 else self._most // 2):
            self._merge()

    def _merge(self) -> None:
        """Merge pairs of buckets; all but the last are full."""
        self._last += 0 if len(self._buckets) % 2 else self._each
        pairs = (self._buckets[at : at + 2] for at in range(0, len(self._buckets), 2))
        self._buckets = [_extremes(list(chain.from_iterable(pair))) for pair in pairs]
        self._each *= 2

    def kept(self) -> Iterator[_Placed]:
        """Return the kept events."""
        return chain.from_iterable(self._buckets)


def _extremes(events: list[_Placed]) -> list[_Placed]:
    """Return min and max in their order; the first event if none is finite."""
    if len(events) == 1:
        return events
    finite = [one for one in events if math.isfinite(_number(one))]
    if not finite:
        return events[:1]
    low, high = min(finite, key=_number), max(finite, key=_number)
    return [one for one in events if one is low or one is high]


def _number(one: _Placed) -> float:
    point = one[1].point
    return point.number if point.HasField("number") else math.nan


def event_record(event: Event) -> dict[str, Any]:
    """Return a value for programs; with `ranks` instead of `rank` if reduced over replicas."""
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    point = event.point
    return {
        "session": event.session,
        "metric": point.name,
        "step": whole(point.step) if point.HasField("step") else None,
        "value": reported(point),
        "time": moment(seconds_of(point.time)),
        "attempt": point.attempt,
        **({"ranks": event.ranks} if event.ranks else {"rank": point.rank}),
        "origin": point.origin or None,
    }


def _step(event: Event, _now: float) -> str:
    return f"{event.point.step:.15g}" if event.point.HasField("step") else "-"


def _rounded(event: Event, _now: float) -> str:
    from nsml.common.units import number_text

    value = reported(event.point)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number_text(value) if is_number else str(value)


def _value_within(event: Event, _now: float, cells: int) -> str:
    from nsml.common.units import number_within

    value = reported(event.point)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number_within(value, cells) if is_number else str(value)


def _rank(event: Event, _now: float) -> str:
    return f"all {event.ranks}" if event.ranks else str(event.point.rank)


def _is_of_several(event: Event) -> bool:
    return event.ranks > 1 or event.point.rank > 0


def _moment(event: Event, _now: float) -> str:
    from nsml.common.units import local_moment
    from nsml.view.times import seconds_of

    return local_moment(seconds_of(event.point.time))


EVENT_COLUMNS: tuple[Column[Event], ...] = (
    Column(
        key="metric",
        title="Metric",
        cell=lambda e, _: e.point.name,
        shrinks_to=_NAME_CELLS,
        is_name=True,
    ),
    Column(key="step", title="Step", cell=_step),
    # -o wide shows all digits instead.
    Column(
        key="value",
        title="Value",
        cell=_rounded,
        tells=lambda _: False,
        shrinks_to=_NUMBER_CELLS,
        least=_NUMBER_CELLS,
    ),
    Column(
        key="exact_value",
        title="Value",
        cell=lambda e, _: str(reported(e.point)),
        is_wide=True,
        shrinks_to=_NUMBER_CELLS,
        least=_NUMBER_CELLS,
        within=_value_within,
    ),
    Column(key="time", title="Time", cell=_moment, is_optional=True),
    Column(
        key="attempt",
        title="Attempt",
        cell=lambda e, _: str(e.point.attempt),
        is_wide=True,
        is_worth=lambda e: e.point.attempt > 1,
    ),
    Column(key="rank", title="Rank", cell=_rank, is_wide=True, is_worth=_is_of_several),
    Column(key="session", title="Session", cell=lambda e, _: e.session, is_wide=True),
    Column(
        key="origin",
        title="Origin",
        cell=lambda e, _: e.point.origin or "-",
        is_wide=True,
        is_worth=lambda e: e.point.origin != "",
        is_optional=True,
    ),
)


def tell_missing(app: App, count: int, session: str) -> None:
    """Report the number of permanently missing reports of a session, once per command."""
    from nsml.common.text import visible

    if not count:
        return
    are = "is" if count == 1 else "are"
    app.say_once(
        visible(
            f"({counted(count, 'report')} of {session} {are} missing; "
            f"its log says why where the program knew: nsml logs {shell_word(session)})"
        )
    )


def tell_simulated(app: App, session: Session) -> None:
    """Report to people that a session's GPUs are simulated, if so."""
    from nsml.common.text import visible
    from nsml.view.sessions import SIMULATED

    if session.simulated and app.is_for_people:
        app.say(visible(f"({session.name}: the GPUs are {SIMULATED})"))


def tell_let_go(app: App, let_go: Timestamp, session: str) -> bool:
    """Report that points of a session were removed by retention, once per command; return whether any were."""
    from nsml.common.text import visible
    from nsml.common.time_zone import local
    from nsml.view.times import seconds_of

    if not let_go.seconds:
        return False
    app.say_once(
        visible(
            f"(points of {session} were removed on {local(seconds_of(let_go)):%Y-%m-%d} (retention); "
            f"charts remain: nsml plot {shell_word(session)} --chart)"
        )
    )
    return True


async def let_go_words(app: App, client: Client, sessions: Sequence[Session]) -> str:
    """Return why there is nothing to show, if points were removed, and report it; "" if none were."""
    gone = [tell_let_go(app, await client.sessions.let_go(one.id), one.name) for one in sessions]
    return "no points are left" if any(gone) else ""


def check_there(sessions: Sequence[Session], rank: int | None, attempt: int | None) -> None:
    """Raise CommandError (NOT_FOUND) if no session has such a replica, or such an attempt."""
    replicas = max((max(one.spec.replica_count, 1) for one in sessions), default=0)
    attempts = max((one.attempt for one in sessions), default=0)
    subject = f"{sessions[0].name} has no" if len(sessions) == 1 else "none of these sessions has"
    if rank is not None and rank >= replicas:
        why = "there is 0 alone" if replicas == 1 else f"there are 0 to {replicas - 1}"
        raise CommandError(f"{subject} replica {rank}", code=ExitCode.NOT_FOUND, why=why)
    if attempt is not None and attempt > attempts:
        why = f"there {'was' if attempts == 1 else 'were'} {counted(attempts, 'attempt')}"
        raise CommandError(f"{subject} attempt {attempt}", code=ExitCode.NOT_FOUND, why=why)


def nothing_in_log(requests: Sequence[str]) -> str:
    """Return the message that no line of the log has a metric."""
    from nsml.log_metrics.patterns import AUTO

    if list(requests) == [AUTO]:
        return (
            "no line of the log has a metric that is recognised:"
            " --from-log 'NAME=PATTERN' takes an RE2 pattern with a group around the number"
        )
    return "no line of the log matches"


def nothing_by(
    rank: int | None, attempt: int | None, sessions: Sequence[Session], what: str = "nothing"
) -> str:
    """Return the message that the selection reported nothing."""
    from nsml.client.streams import ENDED_STATES

    parts = {"rank": rank, "attempt": attempt}
    named = " and ".join(f"{word} {number}" for word, number in parts.items() if number is not None)
    if named:
        return f"{what} reported by {named}"
    has_ended = all(one.state in ENDED_STATES for one in sessions)
    return "nothing was reported" if has_ended else "nothing reported yet"


def fits(name: str, globs: Sequence[str]) -> bool:
    """Return whether a metric is selected: by any glob, or if there are no globs."""
    from fnmatch import fnmatchcase

    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def no_numbers_words(session: str, names: Sequence[str]) -> str:
    """Return the message that one or more metrics are not numeric, with the command that shows them."""
    from nsml.common.text import visible

    if len(names) == 1:
        return visible(f"{names[0]} is no number: {events_line(session, names[0])}")
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return visible(f"{shown} are no numbers: nsml events {shell_word(session)}")


def events_line(session: str, name: str) -> str:
    """Return the command that shows the values of exactly this name."""
    return shell_line(["nsml", "events", *operands(session, escape(name))])


def ask_known(
    app: App,
    sessions: Sequence[str],
    globs: Sequence[str],
    corrected: Callable[[str, str], Sequence[str]],
) -> None:
    """Raise if sessions reported something, but nothing that a glob matches; see `check_known`."""
    from nsml.client.series import reported

    check_known(app.call(lambda client: reported(client, sessions)), globs, corrected)


def check_known(
    reported: Mapping[str, Sequence[Metric]],
    globs: Sequence[str],
    corrected: Callable[[str, str], Sequence[str]],
) -> None:
    """Raise CommandError if sessions reported something, but nothing that a glob matches.

    `reported`: metrics by session. `corrected`: the words after `nsml` for a session and a metric.
    """
    by_name = {metric.name: session for session, metrics in reported.items() for metric in metrics}
    names = list(by_name)
    if not names or any(fits(name, globs) for name in names):
        return
    raise CommandError(
        f"no metric {' or '.join(map(repr, globs))} was reported",
        code=ExitCode.NOT_FOUND,
        why=f"there are {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}",
        advice="\n".join(
            shell_line(["nsml", *corrected(by_name[name], escape(name))])
            for glob in globs
            for name in near(glob, names)
        ),
    )
