"""The settings of a competition as a TOML file. Pure, but for `read`."""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from cli.boards.settings import parse_limit
from cli.exits import CommandError, ExitCode
from cli.group import near
from nsml.common.units import counted
from nsml.v1 import competitions_pb2 as pb
from nsml.view.boards import public_score_named
from nsml.view.sessions import visibility_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from google.protobuf.timestamp_pb2 import Timestamp

_MOST_BYTES: Final = 1 << 20
_MOST_COUNT: Final = (1 << 32) - 1
_MOST_SHOWN: Final = 40
_YEARS: Final = range(2000, 2101)
_PUBLIC_SCORES: Final = ("own-best", "exact", "ladder")
_VISIBILITIES: Final = ("private", "team", "public")
_PHASE: Final = "[[phase]]"

_TEMPLATE: Final = """\
# A competition: nsml competition create NAME FILE.toml
# Lines that begin with # are optional, with the default or an example.

title = "Digits of the spring course"
description = \"\"\"
Recognise handwritten digits. The ranking is by accuracy on hidden images.

- Teams of at most 4; one account a person.
- No data but the dataset's own.
\"\"\"

# Zone of dates without one, such as 2027-03-01T09:00:00: the name of a place, or "UTC".
zone = "{zone}"

# Who sees it: "public", "team" or "private". Default: everybody, or invited users alone if it is by invitation.
visibility = "public"
# Only invited users may join: nsml competition invite NAME USER --into-competition
# by_invitation = false
# The most members of a team.
# team_size = 4
# The most GPUs that the running sessions of a team on the competition's datasets hold together. Default: no limit.
# gpus = 4
# Until when teams may merge. Default: the end of the last phase.
# mergers_until = {middle}T09:00:00

# Phases follow one another. A submission belongs to the phase in which it was made: the start is in it, the end is not.
[[phase]]
name = "qualifying"
starts = {first}T09:00:00
ends = {second}T09:00:00
# A dataset of yours with a hidden test set and an evaluation: nsml dataset info NAME
# The greatest score is the best. If the score is an error: nsml board set NAME --min
dataset = "digits"
# Submissions of a team: so many in a time, or "none". Default: as the dataset's board.
limit = "10/1d"
# What participants see of scores: "own-best" (a score that is not better shows the best before), "exact", or "ladder"
# (a score has to be better by a step to be shown).
# public_score = "own-best"
# How many teams go on to the next phase. Default: all.
advance = 20
# How many of its submissions a team picks to count in the end.
# picks = 2

[[phase]]
name = "final"
starts = {second}T09:00:00
ends = {last}T09:00:00
# Another one: participants know their private scores of the first dataset by now.
dataset = "digits-final"
limit = "5/1d"
"""


def template(today: date, zone: str) -> str:
    """Return a file to begin with: commented, with phases from tomorrow on."""
    dates = {"first": 1, "middle": 8, "second": 15, "last": 22}
    days = {name: (today + timedelta(days=count)).isoformat() for name, count in dates.items()}
    return _TEMPLATE.format(zone=zone, **days)


def zone_here(environ: Mapping[str, str]) -> str:
    """Return the name of this machine's time zone; "UTC" if it is not known."""
    linked = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    for name in (environ.get("TZ", "").removeprefix(":"), linked):
        if name:
            with suppress(ValueError, OSError, KeyError):
                return ZoneInfo(name).key.removeprefix("Etc/")
    return "UTC"


class _Wrong(Exception):
    """A value that is not possible; the message says why."""


class _Problems:
    """Collects what is wrong with a file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: list[str] = []
        self._advice: list[str] = []

    def add(self, where: str, message: str, advice: str = "") -> None:
        """Note a problem of a key, `title` or `[[phase]] 2 (final): limit`."""
        self._lines.append(f"{where}: {message}")
        if advice:
            self._advice.append(advice)

    def check(self) -> None:
        """Raise CommandError if there were any; USAGE."""
        if not self._lines:
            return
        if len(self._lines) == 1:
            message, why = f"{self._file}: {self._lines[0]}", ""
        else:
            message = f"{self._file}: {counted(len(self._lines), 'error')}"
            why = "\n".join(self._lines)
        advice = self._advice or ["nsml competition template    has all keys"]
        raise CommandError(
            message,
            code=ExitCode.USAGE,
            reason="SETTINGS_FILE",
            why=why,
            advice="\n".join(dict.fromkeys(advice)),
        )


def read(file: Path) -> pb.CompetitionSettings:
    """Read the settings of a competition.

    Raises:
        CommandError: the file is no TOML, or a key is unknown, missing or not possible; all are listed. USAGE.
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise CommandError(f"{file} is larger than 1 MiB: no settings", code=ExitCode.USAGE)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{file} is not UTF-8 text", code=ExitCode.USAGE, why=f"at byte {error.start}"
        ) from error
    return parse(text, str(file))


def parse(text: str, file: str) -> pb.CompetitionSettings:
    """Parse the settings of a competition; `file` is its name in errors. Raises CommandError as `read`."""
    try:
        document = tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CommandError(
            f"{file} is not TOML",
            code=ExitCode.USAGE,
            reason="SETTINGS_FILE",
            why=str(error),
            advice='texts are in quotes: title = "My competition"\n'
            "nsml competition template    has all keys",
        ) from error
    problems = _Problems(file)
    settings = _settings(document, problems)
    problems.check()
    return settings


def _settings(document: Mapping[str, Any], problems: _Problems) -> pb.CompetitionSettings:
    settings = pb.CompetitionSettings()
    zone = _zone(document, problems)
    top = _Table(document, "", problems)
    settings.title = top.take("title", _line, "")
    settings.description = top.take("description", _text, "")
    settings.by_invitation = top.take("by_invitation", _yes_or_no, default=False)
    settings.team_size = top.take("team_size", _count, 0)
    settings.gpu_thousandths = top.take("gpus", _thousandths, 0)
    if word := top.take("visibility", _one_of(_VISIBILITIES), ""):
        settings.visibility = visibility_named(word)
    if (
        at := top.take("mergers_until", lambda value: _moment(value, zone, is_end=True), None)
    ) is not None:
        _set(settings.mergers_until, at)
    phases = top.take("phase", _tables, [])
    top.check_keys(("zone",))
    if not phases and "phase" in document:
        return settings
    if not phases:
        problems.add(_PHASE, "a competition has at least one", "nsml competition template")
    names: set[str] = set()
    for number, table in enumerate(phases, 1):
        phase = _phase(table, number, zone, problems)
        if phase.name and phase.name in names:
            problems.add(_where(table, number, "name"), f"there are two phases {phase.name!r}")
        names.add(phase.name)
        settings.phases.append(phase)
    return settings


def _phase(
    values: Mapping[str, Any], number: int, zone: ZoneInfo | None, problems: _Problems
) -> pb.Phase:
    table = _Table(values, _place(values, number), problems)
    phase = pb.Phase(
        name=table.take("name", _line),
        dataset=table.take("dataset", _line),
        advance=table.take("advance", _count, 0),
        picks=table.take("picks", _count, 0),
    )
    starts = table.take("starts", lambda value: _moment(value, zone, is_end=False))
    ends = table.take("ends", lambda value: _moment(value, zone, is_end=True))
    if starts is not None:
        _set(phase.starts_at, starts)
    if ends is not None:
        _set(phase.ends_at, ends)
    if starts is not None and ends is not None and ends <= starts:
        problems.add(f"{table.place}: ends", "it ends before it starts")
    limit = table.take("limit", _limit, None)
    if limit is not None:
        phase.limit.count = limit[0]
        phase.limit.window.FromNanoseconds(round(limit[1] * 1e9))
    if word := table.take("public_score", _one_of(_PUBLIC_SCORES), ""):
        phase.public_score = public_score_named(word)
    table.check_keys()
    return phase


def _place(values: Mapping[str, Any], number: int) -> str:
    """Return `[[phase]] 2 (final)`."""
    name = values.get("name")
    named = f" ({name[:_MOST_SHOWN]})" if isinstance(name, str) and name else ""
    return f"{_PHASE} {number}{named}"


def _where(values: Mapping[str, Any], number: int, key: str) -> str:
    return f"{_place(values, number)}: {key}"


_REQUIRED: Final[Any] = object()


class _Table:
    """A table of the file: its keys are taken one by one, and those that are left are unknown."""

    def __init__(self, values: Mapping[str, Any], place: str, problems: _Problems) -> None:
        self.place = place
        self._values = values
        self._problems = problems
        self._known: list[str] = []

    def take(self, key: str, convert: Callable[[Any], Any], default: Any = _REQUIRED) -> Any:
        """Return a converted value; if it is missing or not possible, notes that and returns the default, or None."""
        self._known.append(key)
        empty = None if default is _REQUIRED else default
        if key not in self._values:
            # A misspelt key is reported as one, not also as a missing one.
            if default is _REQUIRED and not self._misspelt(key):
                self._problems.add(self._named(key), "is missing", f"add {key} = {_EXAMPLES[key]}")
            return empty
        try:
            return convert(self._values[key])
        except _Wrong as error:
            self._problems.add(self._named(key), str(error))
            return empty

    def check_keys(self, others: Sequence[str] = ()) -> None:
        """Note unknown keys, each with the nearest known one."""
        known = [*self._known, *others]
        for key in self._values:
            if key in known:
                continue
            self._problems.add(
                self._named(key[:_MOST_SHOWN]), f"there is no such key{self._meant(key, known)}"
            )

    def _meant(self, key: str, known: Sequence[str]) -> str:
        """Return where a key belongs, or the nearest one."""
        if self.place and key in _TOP_KEYS:
            return f": it belongs above the first {_PHASE}"
        if not self.place and key in _PHASE_KEYS:
            return f": it belongs below a line {_PHASE}"
        nearest = near(key.lower(), known)[:1]
        return f"; did you mean {nearest[0]}?" if nearest else ""

    def _misspelt(self, key: str) -> bool:
        return any(near(one.lower(), [key]) for one in self._values if one not in _KEYS)

    def _named(self, key: str) -> str:
        return f"{self.place}: {key}" if self.place else key


_EXAMPLES: Final[Mapping[str, str]] = {
    "name": '"final"',
    "dataset": '"digits"',
    "starts": "2027-03-01T09:00:00+09:00",
    "ends": "2027-03-15T09:00:00+09:00",
}
_TOP_KEYS: Final = (
    *("title", "description", "by_invitation", "team_size", "mergers_until", "gpus"),
    *("visibility", "zone", "phase"),
)
_PHASE_KEYS: Final = (
    *("name", "starts", "ends", "dataset", "limit", "public_score", "advance", "picks"),
)
_KEYS: Final = frozenset({*_TOP_KEYS, *_PHASE_KEYS})


# Values


def _shown(value: Any) -> str:
    """Return a value as in the file, cut."""
    match value:
        case bool():
            return str(value).lower()
        case datetime() | date() | time():
            return value.isoformat()
        case list():
            return "a list"
        case dict():
            return "a table"
        case str():
            cut = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."
            return repr(cut)
        case _:
            return str(value)[:_MOST_SHOWN]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{_shown(value)} is not a text in quotes")
    return value.strip("\n")


def _line(value: Any) -> str:
    text = _text(value)
    if not text:
        raise _Wrong("it is empty")
    if not text.isprintable():
        raise _Wrong(f"{_shown(text)} is not one line of text")
    return text


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{_shown(value)} is neither true nor false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong(f"{_shown(value)} is not a whole number")
    if not 1 <= value <= _MOST_COUNT:
        raise _Wrong(f"{_shown(value)} is not at least 1; for the default leave it out")
    return value


def _thousandths(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Wrong(f"{_shown(value)} is not a number")
    if not 0 < value * 1000 <= _MOST_COUNT or value * 1000 != round(value * 1000):
        raise _Wrong(
            f"{_shown(value)} is no number of GPUs such as 4 or 0.5; for no limit leave it out"
        )
    return round(value * 1000)


def _limit(value: Any) -> tuple[int, float]:
    if not isinstance(value, str):
        raise _Wrong(f'{_shown(value)} is not a text such as "10/1d"; for no limit: "none"')
    try:
        return parse_limit(value)
    except ValueError as error:
        raise _Wrong(str(error)) from error


def _one_of(words: Sequence[str]) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            nearest = near(str(value).lower(), words)[:1]
            meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise _Wrong(f"{_shown(value)} is not one of {', '.join(words)}{meant}")
        return value

    return convert


def _tables(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, dict):
        raise _Wrong(f"write {_PHASE} with two brackets: a competition has a list of them")
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _Wrong(f"{_shown(value)}: each phase is a table {_PHASE}")
    return value


def _zone(document: Mapping[str, Any], problems: _Problems) -> ZoneInfo | None:
    if "zone" not in document:
        return None
    name = document["zone"]
    try:
        return ZoneInfo(_line(name))
    except (_Wrong, ValueError, OSError, KeyError):
        from zoneinfo import available_timezones

        nearest = near(str(name), sorted(available_timezones()))[:1]
        meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
        problems.add("zone", f"{_shown(name)} is no time zone such as 'Asia/Seoul' or 'UTC'{meant}")
        return ZoneInfo("UTC")


def _moment(value: Any, zone: ZoneInfo | None, *, is_end: bool) -> datetime:
    """Return an instant: with an offset, else in the zone. A date alone is its midnight, and no end."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, time) or not isinstance(value, date):
        raise _Wrong(f"{_shown(value)} is not a date with a time such as 2027-03-01T09:00:00")
    if not isinstance(value, datetime):
        if is_end:
            day = value.isoformat()
            raise _Wrong(
                f"{day} has no time: {day}T00:00:00 is before that day, {day}T23:59:59 at its end"
            )
        value = datetime.combine(value, time())
    if value.year not in _YEARS:
        raise _Wrong(f"{_shown(value)}: the year is not in 2000 to 2100")
    if value.tzinfo is not None:
        at: datetime = value
        return at
    if zone is None:
        raise _Wrong(
            f"{_shown(value)} has no zone: write the offset behind it, such as +09:00, or zone = 'Asia/Seoul' at the top"
        )
    return _in_zone(value, zone)


def _parsed(text: str) -> date:
    try:
        return (
            date.fromisoformat(text)
            if len(text) == len("2027-03-01")
            else datetime.fromisoformat(text)
        )
    except ValueError:
        raise _Wrong(
            f"{_shown(text)} is not a date with a time such as 2027-03-01T09:00:00"
        ) from None


def _in_zone(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of a local time that exists once; clocks that are put back show an hour twice."""
    first, second = local.replace(tzinfo=zone), local.replace(tzinfo=zone, fold=1)
    if first.utcoffset() == second.utcoffset():
        return first
    returned = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None)
    if returned != local:
        raise _Wrong(f"{_shown(local)} does not exist in {zone.key}: clocks are put forward then")
    raise _Wrong(
        f"{_shown(local)} is twice in {zone.key}: write {first.isoformat()} or {second.isoformat()}"
    )


def _set(field: Timestamp, at: datetime) -> None:
    field.FromDatetime(at.astimezone(UTC).replace(tzinfo=None))
