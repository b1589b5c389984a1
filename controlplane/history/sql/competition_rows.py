"""Rows of competitions, for all tables with rules that depend on them."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.competitions.values import Competition, CompetitionState
from controlplane.history.competition_values import decode_settings
from controlplane.history.sql.queries import RowType

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.history.sql.interface import Connection

COMPETITION: Final = RowType(Competition, state=CompetitionState, settings=decode_settings)
SELECT: Final = f"SELECT {COMPETITION.columns} FROM competitions"


def open_with(
    connection: Connection, datasets: Collection[tuple[str, str]]
) -> tuple[Competition, ...]:
    """Return the open competitions with a phase on one of these datasets (owner and name), by id; part of a larger transaction."""
    found = connection.execute(
        f"{SELECT} WHERE state = ? ORDER BY id", (int(CompetitionState.OPEN),)
    ).fetchall()
    return tuple(
        one
        for one in map(COMPETITION.read, found)
        if not one.settings.datasets.isdisjoint(datasets)
    )
