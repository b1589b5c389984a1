"""How the list of sessions is shown: order, groups and columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from nsml.common.shell import shell_line
from nsml.common.units import thousandths
from nsml.spec.labels import LABEL
from nsml.v1.sessions_pb2 import Session
from nsml.view.differing_arguments import NOTHING_SHARED
from nsml.view.filtering import complete
from nsml.view.sessions import COLUMNS, SIMULATED_SHORT, held_text
from nsml.view.sorting import (
    AGING,
    ARGUMENT,
    SUMMARY,
    arguments_text,
    arguments_within,
    column,
    marked,
    order,
    value_of,
    with_filtered,
)
from nsml.view.tables import kept
from tui.model import tally_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.view.differing_arguments import Shared
    from nsml.view.tables import Column
    from tui.model import Row, Tally

NEWEST: Final = "created"
"""Default sort key, newest first."""
_HELD: Final = partial(held_text, simulated=SIMULATED_SHORT)
_TEXT_CELLS: Final = 12
_ARGUMENT_CELLS: Final = 12
"""Width to which arguments are cut before optional columns are left out: most fit with their value."""


class By(StrEnum):
    """Grouping of sessions."""

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
    """Limit of its GPUs in thousandths; None: unknown."""

    @property
    def id(self) -> str:
        """An id that no session has."""
        return f"group {self.name}"

    @property
    def text(self) -> str:
        """The text of the line."""
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
    """Settings of a list, as saved."""

    filter: str = ""
    sort: str = NEWEST
    is_down: bool = True
    columns: tuple[str, ...] = ()
    """Keys of columns, in order; empty: those of `nsml ps`."""
    is_mine: bool = False
    with_ended: bool = True
    has_preview: bool = True
    by: By = By.NOTHING
    folded: tuple[str, ...] = ()
    """Groups whose sessions are hidden."""

    @property
    def looks_into_commands(self) -> bool:
        """Whether the filter, order or a column may use any argument of a command."""
        return bool(self.filter) or any(
            key.startswith(ARGUMENT) or key == "args" for key in (self.sort, *self.columns)
        )

    @property
    def is_plain(self) -> bool:
        """Whether it has the model's order."""
        return self.sort == NEWEST and self.is_down


def arranged(rows: Sequence[Row], listing: Listing, now: float) -> Sequence[Row]:
    """Sort rows, which come newest first; rows without a value are last."""
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
    """List sessions under their groups, which are sorted by name; sessions keep their order.

    `quotas`: GPU limits of projects, in thousandths.
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


def columns_of(
    listing: Listing, shared: Shared[str | bool] = NOTHING_SHARED
) -> list[Column[Session]]:
    """Return the columns, with the sort key marked, and without arguments that all rows share."""
    if listing.columns:
        every = map(column, _with_name(listing.columns))
        found = [_wanted(one) for one in every if one is not None]
    else:
        found = list(COLUMNS)
    found = [_arguments(one, shared) if one.key == "args" else _short(one) for one in found]
    found = with_filtered(found, complete(listing.filter).asked)
    return found if listing.is_plain else marked(found, listing.sort, is_down=listing.is_down)


def _wanted(one: Column[Session]) -> Column[Session]:
    """Keep a chosen column: cut it rather than leave it out."""
    cells = one.shrinks_to and min(one.shrinks_to, _TEXT_CELLS)
    return kept(one)._replace(shrinks_to=cells)


def _short(one: Column[Session]) -> Column[Session]:
    """Shorten the note on simulated GPUs, which the first line has in full."""
    return one._replace(cell=_HELD) if one.key == "gpus" else one


def _arguments(one: Column[Session], shared: Shared[str | bool]) -> Column[Session]:
    """Show arguments by name, as in filters and columns, not as passed to the program."""
    one = one._replace(
        cell=lambda session, _: arguments_text(session, shared),
        within=lambda session, _, cells: arguments_within(session, cells, shared),
        shrinks_to=_ARGUMENT_CELLS,
    )
    if not shared.same:
        return one
    return one._replace(
        title="Args (differing)",
        title_within=lambda _: "Args",
        is_wide=True,
        is_worth=lambda session: bool(arguments_text(session, shared)),
    )


def title_of(key: str) -> str:
    """A column's display name."""
    if key.startswith(SUMMARY):
        return f"{key.removeprefix(SUMMARY)}  (summary)"
    if key.startswith(ARGUMENT):
        return f"{key.removeprefix(ARGUMENT)}  (argument)"
    if key.startswith(LABEL):
        return f"{key.removeprefix(LABEL)}  (label)"
    found = column(key)
    return found.title if found is not None else key


def _with_name(keys: Sequence[str]) -> Sequence[str]:
    """Add the name, which identifies sessions."""
    return keys if "name" in keys else ("name", *keys)


def command_of(listing: Listing) -> tuple[str, str]:
    """Return the equivalent command line, and what it cannot express."""
    words, lacks = ["nsml", "ps"], []
    words += ["-a"] if listing.with_ended else []
    words += ["--mine"] if listing.is_mine else []
    words += ["--filter", listing.filter] if listing.filter else []
    words += [] if listing.is_plain else ["--sort", "-" * listing.is_down + listing.sort]
    fields = [key for key in _with_name(listing.columns) if "," not in key]
    words += ["--fields", ",".join(fields)] if listing.columns else []
    lacks += (
        ["columns with a comma in their name"] if any("," in key for key in listing.columns) else []
    )
    lacks += ["groups"] if listing.by else []
    return shell_line(words), " and ".join(lacks)
