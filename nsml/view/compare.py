"""Comparison of sessions: their requests and reports, as rows that differ or not."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from nsml.common.units import counted, number_text, size_text
from nsml.content.digests import digest_of
from nsml.packages.requirements import name_of
from nsml.spec.run_flags import asked_rows
from nsml.view.program_changes import settings
from nsml.view.reported_config import value_text, values_of
from nsml.view.sessions import (
    command_words,
    driver_versions,
    git_text,
    images_text,
    initial_text,
    lock_text,
    plain,
    python_versions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsml.content.manifest import Entry, Manifest
    from nsml.packages.locks import LockedPackage
    from nsml.v1.sessions_pb2 import ReportedConfig, Series, Session

_OPTION = re.compile(r"--?[A-Za-z]")
_PAIR = re.compile(r"[A-Za-z_+~][\w.+/@-]*=")
_DIGEST_DIGITS = 12
_FILE_DIGITS = 8
_PARTS = re.compile(r"(\S+) \((\S+) \.\. (\S+)\)(.*)")
"""The cell of a metric, as `cell` formats it."""
_ABSENT = "-"


class Kind(StrEnum):
    """The kind of a row."""

    ARGUMENT = "argument"
    CONFIG = "config"
    """The configuration that its programs reported to W&B, MLflow and others."""
    CODE = "code"
    DATA = "data"
    """Datasets, and the initial checkpoint."""
    ENVIRONMENT = "environment"
    """Image, packages, variables, secrets, network; also its runtime and hardware."""
    SETTING = "setting"
    """All other requests."""
    KNOB = "knob"
    SUMMARY = "summary"
    METRIC = "metric"


_KINDS: Final = {
    **dict.fromkeys(("entry", "code", "git"), Kind.CODE),
    **dict.fromkeys(("datasets", "checkpoint"), Kind.DATA),
    **dict.fromkeys(("image", "env", "secret", "network"), Kind.ENVIRONMENT),
    "set": Kind.KNOB,
}
"""Kinds of requests by the first word of the key; all others are settings."""


class Better(StrEnum):
    """Whether lower or higher values of a metric are better."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of a metric of one session; numbers are None if none was finite."""

    last: float | None = None
    """The latest by time."""
    low: float | None = None
    high: float | None = None
    count: int = 0
    not_finite: int = 0
    """Number of NaN and infinite values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One key of all sessions; `values` by session, without missing ones."""

    kind: Kind
    key: str
    values: Mapping[str, Any]
    sessions: int
    """Number of compared sessions."""
    better: Better | None = None
    best: tuple[str, ...] = field(default=())
    """The sessions with the best value; several if equal."""

    @property
    def title(self) -> str:
        """The title for people: an argument without its dashes, as in filters and columns."""
        return self.key.lstrip("-") if self.kind is Kind.ARGUMENT else self.key

    @property
    def differs(self) -> bool:
        """Whether any two sessions differ; a missing value is a difference, too. NaN equals NaN."""
        some = list(map(self.token, self.values.values()))
        return len(some) < self.sessions or len(set(some)) > 1

    def token(self, value: Any) -> str:
        """Return what is equal of equal values."""
        return value_text(value) if self.kind is Kind.CONFIG else repr(value)

    @property
    def is_reported(self) -> bool:
        """Whether its values are reported results."""
        return self.kind in {Kind.METRIC, Kind.SUMMARY}


def arguments(words: Sequence[str]) -> dict[str, str | bool]:
    """Parse arguments by name: `--lr 0.1`, `--lr=0.1` and `lr=0.1`; True for one without a value.

    All words up to the next option are its value, so that `--sizes 64 64` is one; a repeated option has
    one value, too. Other words are named by their position among these, from 1 on.
    """
    found: dict[str, list[str]] = {}
    open_key, others = "", 0
    for word in words:
        key, has_value, value = word.partition("=")
        is_option = _OPTION.match(word) is not None
        # A word right after an option is its value, whatever it looks like.
        is_pair = _PAIR.match(word) is not None and bool(found.get(open_key, True))
        if is_option or is_pair:
            found.setdefault(key, []).extend([value] if has_value else [])
            open_key = "" if has_value else key
        elif open_key:
            found[open_key].append(word)
        else:
            others += 1
            found[str(others)] = [word]
    return {key: " ".join(values) if values else True for key, values in found.items()}


def asked(sessions: Sequence[Session]) -> list[Row]:
    """Return the request of each session, by kind; arguments in their original order."""
    found = {one.name: _by_kind(_settings(one)) for one in sessions}
    for one in sessions:
        found[one.name][Kind.ARGUMENT] = arguments_of(one)
    return [
        row
        for kind in Kind
        for row in _rows(kind, {name: kinds.get(kind, {}) for name, kinds in found.items()})
    ]


def by_kind(rows: Iterable[Row]) -> list[Row]:
    """Sort rows by kind."""
    places = {kind: place for place, kind in enumerate(Kind)}
    return sorted(rows, key=lambda row: places[row.kind])


def configs(
    sessions: Sequence[Session], received: Mapping[str, ReportedConfig] | None = None
) -> list[Row]:
    """Return the configuration that the programs of sessions reported, by flattened name: `optimizer.lr`.

    `received`: by the session's id, for sessions of lists, which have none.
    """
    found = {
        one.name: values_of(one.reported_config if received is None else received[one.id])
        for one in sessions
        if received is None or one.id in received
    }
    rows = _rows(Kind.CONFIG, {one.name: found.get(one.name, {}) for one in sessions})
    return sorted(rows, key=lambda row: _natural(row.key))


def _natural(key: str) -> list[tuple[bool, int, str]]:
    """Order numbers in names by value: `layers.9` before `layers.10`."""
    parts = re.split("([0-9]{1,18})", key)
    return [
        (True, int(part), part) if part.isascii() and part.isdecimal() else (False, 0, part)
        for part in parts
    ]


def set_live(sessions: Sequence[Session]) -> list[Row]:
    """Return the knobs of each session that were set while it ran."""
    found = {
        one.name: {f"set live {name}": text for name, text in settings(one.changes).items()}
        for one in sessions
    }
    return _rows(Kind.KNOB, found)


def ran(sessions: Sequence[Session]) -> list[Row]:
    """Return the runtime and hardware of each session's last run."""
    found = {one.name: {key: value for key, value in _places(one) if value} for one in sessions}
    return _rows(Kind.ENVIRONMENT, found)


def files(trees: Mapping[str, Manifest]) -> list[Row]:
    """Return the files that differ among the trees of sessions, by name: size and digest prefix of each."""
    found = {
        name: {f"file {one.path}": _file_text(one) for one in tree.entries}
        for name, tree in trees.items()
    }
    return sorted((row for row in _rows(Kind.CODE, found) if row.differs), key=lambda row: row.key)


def packages(required: Mapping[str, Sequence[str]]) -> list[Row]:
    """Return the packages required by the code of sessions, a row each; requirement lines by the session's name."""
    found = {
        session: {f"package {name_of(line) or line}": line for line in lines}
        for session, lines in required.items()
    }
    return sorted(_rows(Kind.ENVIRONMENT, found), key=lambda row: row.key)


def locked_packages(locks: Mapping[str, Sequence[LockedPackage]]) -> list[Row]:
    """Return the packages installed for sessions, a row each; by the session's name."""
    found = {
        session: {f"package {one.name}": one.what for one in packages}
        for session, packages in locks.items()
    }
    return sorted(_rows(Kind.ENVIRONMENT, found), key=lambda row: row.key)


def summaries(sessions: Sequence[Session]) -> list[Row]:
    """Return the last reports with summary=True, by name."""
    found = {
        one.name: {key: plain(value) for key, value in sorted(one.summary.fields.items())}
        for one in sessions
    }
    return _rows(Kind.SUMMARY, found)


def metrics(sessions: Sequence[Session], series: Iterable[Series]) -> list[Row]:
    """Return last, min and max of each metric, over all replicas and attempts in the series; by name."""
    by_id: dict[str, dict[str, list[Series]]] = {}
    for one in series:
        by_id.setdefault(one.session_id, {}).setdefault(one.name, []).append(one)
    found = {
        session.name: {
            name: _figures(lines) for name, lines in sorted(by_id.get(session.id, {}).items())
        }
        for session in sessions
    }
    return sorted(_rows(Kind.METRIC, found), key=lambda row: row.key)


def judged(rows: Iterable[Row], better: Sequence[tuple[str, Better]]) -> list[Row]:
    """Mark the best sessions of metrics and summaries matched by a glob of `better`; the last match counts."""
    found = []
    for row in rows:
        fitting = [which for glob, which in better if fnmatchcase(row.key, glob)]
        found.append(_judged(row, fitting[-1]) if fitting and row.is_reported else row)
    return found


def _judged(row: Row, better: Better) -> Row:
    values = {name: _value(value, better) for name, value in row.values.items()}
    known = {name: value for name, value in values.items() if value is not None}
    most = (min if better is Better.LOWER else max)(known.values(), default=None)
    best = tuple(name for name, value in known.items() if value == most)
    return replace(row, better=better, best=best)


def cell(row: Row, session: str) -> str:
    """Format a session's value for people: a metric's `last (min .. max)`, or `last / best`.

    `*` marks the best, if known, unless all are.
    """
    value = row.values.get(session)
    if row.kind is Kind.CONFIG and session in row.values:
        return value_text(value)
    if value is None:
        return _ABSENT
    return _text(value, row.better) + _mark(row, session)


def aligned(texts: Sequence[str]) -> list[str]:
    """Align the parts of `last (min .. max)` in the cells of one column."""
    parts = [_PARTS.fullmatch(text) for text in texts]
    found = [part.groups("") for part in parts if part]
    cells = [max((len(one[place]) for one in found), default=0) for place in range(3)]
    return [
        text
        if part is None
        else f"{part[1]:<{cells[0]}} ({part[2]:<{cells[1]}} .. {part[3] + ')':<{cells[2] + 1}}{part[4]}".rstrip()
        for text, part in zip(texts, parts, strict=True)
    ]


def _mark(row: Row, session: str) -> str:
    return " *" if session in row.best and len(row.best) < row.sessions else ""


def is_number(row: Row, session: str) -> bool:
    """Return whether a session's value is a number or metric: its cell is never cut."""
    return isinstance(row.values.get(session), (float, Figures))


def record(row: Row) -> dict[str, Any]:
    """Return a row in raw values, without sessions that lack one."""
    return {
        "kind": row.kind.value,
        "key": row.key,
        "differs": row.differs,
        "better": row.better.value if row.better else None,
        "best": list(row.best),
        "values": {name: _raw(value) for name, value in row.values.items()},
    }


def same_text(rows: Iterable[Row]) -> str:
    """Return the common values of all sessions on one line, without a metric's numbers.

    Of reported configurations, which are long, only their number.
    """
    words = []
    configs = 0
    for row in rows:
        if row.kind is Kind.CONFIG:
            configs += 1
            continue
        value = next(iter(row.values.values()))
        is_named_alone = row.kind is Kind.METRIC or value is True
        words.append(row.title if is_named_alone else f"{row.title}={_text(value, None)}")
    if configs:
        words.append(f"{'and ' if words else ''}{counted(configs, 'value')} of the reported config")
    return " ".join(words)


def _rows(kind: Kind, found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    keys = dict.fromkeys(key for values in found.values() for key in values)
    return [
        Row(
            kind=kind,
            key=key,
            values={name: values[key] for name, values in found.items() if key in values},
            sessions=len(found),
        )
        for key in keys
    ]


def arguments_of(session: Session) -> dict[str, str | bool]:
    """Return its arguments by name; of a custom command the first word is `command`."""
    words = command_words(session)
    if not session.spec.argv:
        return arguments(words)
    return {"command": words[0], **arguments(words[1:])}


def _settings(session: Session) -> Iterator[tuple[str, str]]:
    """Yield its nonempty settings, without arguments."""
    spec = session.spec
    named = {
        "entry": "" if spec.argv else spec.entry,
        "code": spec.bundle_digest[:_DIGEST_DIGITS],
        "git": git_text(session),
        "checkpoint": initial_text(session),
        **asked_rows(session),
    }
    yield from ((key, value) for key, value in named.items() if value)


def _by_kind(named: Iterable[tuple[str, str]]) -> dict[Kind, dict[str, str | bool]]:
    found: dict[Kind, dict[str, str | bool]] = {}
    for key, value in named:
        kind = _KINDS.get(key.partition(" ")[0], Kind.SETTING)
        found.setdefault(kind, {})[key] = value
    return found


def _places(session: Session) -> Iterator[tuple[str, str]]:
    models = Counter(device.model for one in session.replicas for device in one.devices)
    yield "ran in", images_text(session)
    yield "ran with", lock_text(session)
    yield "ran on", ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    yield "GPU driver", ", ".join(driver_versions(session))
    yield "Python", ", ".join(python_versions(session))


def _file_text(entry: Entry) -> str:
    content = digest_of(" ".join(ref.digest for ref in entry.chunks).encode())
    mode = " executable" if entry.mode & 0o111 else ""
    return f"{size_text(entry.size)} {content[:_FILE_DIGITS]}{mode}"


def _figures(series: Sequence[Series]) -> Figures:
    lows, highs = [], []
    latest, last = -math.inf, None
    count = not_finite = 0
    for one in series:
        for place, finite in enumerate(one.finite):
            count += finite + one.odd[place]
            not_finite += one.odd[place]
            if not finite:
                continue
            lows.append(one.low[place])
            highs.append(one.high[place])
            if one.time[place] >= latest:
                latest, last = one.time[place], one.last[place]
    return Figures(
        last=last,
        low=min(lows, default=None),
        high=max(highs, default=None),
        count=count,
        not_finite=not_finite,
    )


def _value(value: Any, better: Better) -> float | None:
    """Return the number to compare; None if there is none."""
    if isinstance(value, Figures):
        return value.low if better is Better.LOWER else value.high
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _odd(value: Figures) -> str:
    return f", {value.not_finite:,} not finite" if value.not_finite else ""


def _text(value: Any, better: Better | None) -> str:
    if value is True:
        return "set"
    if isinstance(value, float):
        return number_text(value)
    if not isinstance(value, Figures):
        return str(value)
    if value.last is None or value.low is None or value.high is None:
        return "no number"
    last, low, high = (number_text(one) for one in (value.last, value.low, value.high))
    if better is not None:
        return f"{last} / {low if better is Better.LOWER else high}{_odd(value)}"
    return f"{last} ({low} .. {high}){_odd(value)}"


def _raw(value: Any) -> Any:
    if not isinstance(value, Figures):
        return value
    return {
        "last": value.last,
        "min": value.low,
        "max": value.high,
        "count": value.count,
        "not_finite": value.not_finite,
    }
