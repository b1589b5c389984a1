"""How the list of sessions is shown: which, in what order, in which columns. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from nsml.v1.sessions_pb2 import Session
from nsml.view.ordering import AGING, ARGUMENT, SUMMARY, column, differing_text, order, value_of
from nsml.view.sessions import COLUMNS, STATE_WORDS
from nsml.view.text import fit
from nsml.view.units import thousandths
from tui.model import tally_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.view.tables import Column
    from tui.model import Row, Tally

NEWEST: Final = "created"
"""What is sorted by where nothing else was chosen, the newest first."""
UP, DOWN = "▴", "▾"
_TEXT_CELLS: Final = 12
_PS_KEYS: Final = frozenset({"state", "user", "ds", "project", "name"})
"""By which `nsml ps` filters, too."""
_STATES: Final = frozenset(one.word.casefold() for one in STATE_WORDS.values())
_STATES_OF_PS: Final = _STATES | {one.code.casefold() for one in STATE_WORDS.values()}
_BEYOND_PS: Final = frozenset("<>=|!")


class By(StrEnum):
    """What sessions are grouped by."""

    NOTHING = ""
    PROJECT = "project"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Group:
    """A line above the sessions of one project, or user."""

    name: str
    is_folded: bool
    running: int
    waiting: int
    ended: int
    gpu_thousandths: int
    quota: int | None = None
    """Thousandths of GPUs that it may hold; None: no bound is known."""

    @property
    def id(self) -> str:
        """Another than that of any session."""
        return f"group {self.name}"

    @property
    def text(self) -> str:
        """What the line says."""
        fold = "▸" if self.is_folded else "▾"
        counts = [
            f"{count:,} {word}"
            for count, word in (
                (self.running, "running"),
                (self.waiting, "waiting"),
                (self.ended, "ended"),
            )
            if count
        ]
        if self.gpu_thousandths or self.quota is not None:
            number = thousandths(self.gpu_thousandths)
            number += "" if self.quota is None else f" of {thousandths(self.quota)}"
            counts.append(f"holds {number} GPU{'' if number == '1' else 's'}")
        return f"{fold} {self.name or '(none)'}   {' · '.join(counts)}"


Item: TypeAlias = Session | Group


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen of a list; as it is remembered."""

    filter: str = ""
    sort: str = NEWEST
    is_down: bool = True
    columns: tuple[str, ...] = ()
    """Keys of columns, in their order; none: those that `nsml ps` shows."""
    is_mine: bool = False
    with_ended: bool = True
    has_preview: bool = True
    by: By = By.NOTHING
    folded: tuple[str, ...] = ()
    """Groups of which the sessions are not listed."""

    @property
    def is_plain(self) -> bool:
        """Whether it is in the order that the model has."""
        return self.sort == NEWEST and self.is_down


def arranged(rows: Sequence[Row], listing: Listing, now: float) -> Sequence[Row]:
    """Rows, which come newest first, in their order; what has nothing to be sorted by is last."""
    if listing.is_plain:
        return rows
    key = listing.sort
    if key in AGING:
        values = [value_of(row.filtered, key, now) for row in rows]
    else:
        values = [row.values[key] if key in row.values else row.value(key, now) for row in rows]
    return [rows[place] for place in order(values, is_down=listing.is_down)]


def grouped(
    rows: Sequence[Row], listing: Listing, quotas: Mapping[str, int] = MappingProxyType({})
) -> list[Item]:
    """The sessions under the lines of their groups, which are by name; inside each they stay as they are.

    `quotas`: how many thousandths of GPUs projects may hold.
    """
    is_by_user = listing.by is By.USER
    parts: dict[str, list[tuple[Session, Tally]]] = {}
    for row in rows:
        tally = row.tally or tally_of(row)
        name = tally.owner if is_by_user else tally.project
        parts.setdefault(name, []).append((row.session, tally))
    items: list[Item] = []
    for name in sorted(parts):
        group = _group(
            name,
            [tally for _, tally in parts[name]],
            is_folded=name in listing.folded,
            quota=None if is_by_user else quotas.get(name),
        )
        items.append(group)
        items += [] if group.is_folded else [session for session, _ in parts[name]]
    return items


def _group(name: str, tallies: Sequence[Tally], *, is_folded: bool, quota: int | None) -> Group:
    waiting = sum(one.waits for one in tallies)
    ended = sum(one.has_ended for one in tallies)
    return Group(
        name=name,
        is_folded=is_folded,
        running=len(tallies) - waiting - ended,
        waiting=waiting,
        ended=ended,
        gpu_thousandths=sum(one.gpu_thousandths for one in tallies),
        quota=quota,
    )


def columns_of(listing: Listing, same: Mapping[str, str | bool]) -> list[Column[Session]]:
    """The columns, with a mark at the one that is sorted by; `same` arguments are in none of the rows."""
    if listing.columns:
        found = [_wanted(one) for key in listing.columns if (one := column(key)) is not None]
        if not any(one.key == "name" for one in found):
            found.insert(0, COLUMNS[0])
    else:
        found = list(COLUMNS)
    if same:
        found = [_differing(one, same) if one.key == "args" else one for one in found]
    return found if listing.is_plain else _marked(found, listing)


def _wanted(one: Column[Session]) -> Column[Session]:
    """One that was chosen: it is cut rather than left out."""
    cells = one.shrinks_to and min(one.shrinks_to, _TEXT_CELLS)
    return one._replace(is_optional=False, shrinks_to=cells)


def _differing(one: Column[Session], same: Mapping[str, str | bool]) -> Column[Session]:
    return one._replace(
        title="Args (differing)",
        title_within=lambda _: "Args",
        cell=lambda session, _: differing_text(session, same),
        is_wide=True,
        is_worth=lambda session: bool(differing_text(session, same)),
    )


def _marked(columns: Sequence[Column[Session]], listing: Listing) -> list[Column[Session]]:
    mark = DOWN if listing.is_down else UP
    found = [_sorted_by(one, mark) if one.key == listing.sort else one for one in columns]
    if listing.sort not in {one.key for one in found} and (other := column(listing.sort)):
        # What is sorted by is seen.
        found.insert(1, _sorted_by(other, mark))
    return found


def _sorted_by(one: Column[Session], mark: str) -> Column[Session]:
    shorter = one.title_within or (lambda cells: fit(one.title, cells))
    return one._replace(
        title=one.title + mark,
        title_within=lambda cells: shorter(cells - 1) + mark,
        is_wide=False,
        is_optional=False,
        stays=True,
    )


def title_of(key: str) -> str:
    """What people call a column."""
    if key.startswith(SUMMARY):
        return f"{key.removeprefix(SUMMARY)}  (summary)"
    if key.startswith(ARGUMENT):
        return f"{key.removeprefix(ARGUMENT)}  (argument)"
    found = column(key)
    return found.title if found is not None else key


def command_of(listing: Listing) -> tuple[str, str]:
    """How the command line shows the same, and what of it the command line does not know."""
    words, lacks = ["nsml", "ps"], []
    words += ["-a"] if listing.with_ended else []
    words += ["--mine"] if listing.is_mine else []
    if listing.filter:
        if _is_of_ps(listing.filter):
            words += ["--filter", listing.filter]
        else:
            lacks.append("the filter")
    fields = [key for key in listing.columns if not key.startswith((SUMMARY, ARGUMENT))]
    words += ["--fields", ",".join(fields)] if fields else []
    lacks += [] if len(fields) == len(listing.columns) else ["columns of single values"]
    lacks += [] if listing.is_plain else ["the order"]
    lacks += ["groups"] if listing.by else []
    return shlex.join(words), " and ".join(lacks)


def _is_of_ps(text: str) -> bool:
    if any(letter in text for letter in _BEYOND_PS):
        return False
    return all(map(_is_word_of_ps, text.split()))


def _is_word_of_ps(word: str) -> bool:
    key, colon, values = word.partition(":")
    if not colon:
        # Here the words of states are looked through, too.
        return not word.startswith("-") and not any(word.casefold() in one for one in _STATES)
    return key in _PS_KEYS and (key != "state" or {*values.casefold().split(",")} <= _STATES_OF_PS)
