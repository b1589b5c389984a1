"""Competitions, with their teams and all that belongs to them.

A change is a pure rule on all facts of one competition, in the transaction that stores what the rule changed.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.boards.scores import standard_error
from controlplane.domain.boards.values import SubmissionState
from controlplane.domain.competitions.standings import PhaseSubmission
from controlplane.domain.competitions.values import (
    Announcement,
    Baseline,
    Competition,
    CompetitionState,
    Facts,
    Invitation,
    Member,
    MergeRequest,
    Pick,
    Team,
    participant_key,
)
from controlplane.domain.identity import Role
from controlplane.domain.policy import CHANGE, SEE
from controlplane.history.board_values import board_key
from controlplane.history.competition_values import encode_settings
from controlplane.history.sql.boards import show_no_more
from controlplane.history.sql.competition_rows import COMPETITION, SELECT, open_with
from controlplane.history.sql.queries import RowType, select, select_one
from controlplane.history.sql.submissions import NEXT_CHANGE, SHOWN
from controlplane.history.sql.visible import may_condition, viewer_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from controlplane.domain.competitions.values import Phase
    from controlplane.domain.identity import User
    from controlplane.history.sql.interface import Connection, Database
    from controlplane.history.values import PageKey


class _Part(NamedTuple):
    """A table with rows of each competition; `key` beside its id."""

    table: str
    kind: Any
    key: tuple[str, ...]

    @property
    def rows(self) -> RowType[Any]:
        return RowType(self.kind)


_PARTS: Final = {
    "teams": _Part("competition_teams", Team, ("name",)),
    "members": _Part("competition_members", Member, ("user_name",)),
    "invitations": _Part("competition_invitations", Invitation, ("user_name", "team")),
    "merges": _Part("competition_merges", MergeRequest, ("team", "other")),
    "announcements": _Part("competition_announcements", Announcement, ("number",)),
    "picks": _Part("competition_picks", Pick, ("phase", "submission_id")),
    "baselines": _Part("competition_baselines", Baseline, ("submission_id",)),
}
_SCORED: Final = int(SubmissionState.SCORED)
_FAILED: Final = int(SubmissionState.FAILED)
_OF_SUBMISSION: Final = (
    "s.id, s.owner, s.team, s.submitted_at, s.ended_at, s.state, s.session_id, s.gpu_seconds,"
    " s.prediction_digest, r.state, r.score, r.private, r.standard_error, r.row_count"
)
_ORDER: Final = {"members": "joined_at, user_name", "teams": "created_at, name"}


class Merging(NamedTuple):
    """Which submissions go to a merged team: of these teams, to its dataset, from an instant on."""

    dataset_owner: str
    dataset: str
    teams: frozenset[str]
    into: str
    since: float


class SqlCompetitions:
    """Competitions. Submissions of their teams are with the other submissions, and stay when one is removed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, competition: Competition) -> bool:
        """Make a competition; False: its owner has one of that name."""

        def work(connection: Connection) -> bool:
            if connection.execute(
                "SELECT 1 FROM competitions WHERE owner = ? AND name = ?",
                (competition.owner, competition.name),
            ).fetchone():
                return False
            connection.execute(COMPETITION.insert("competitions"), _values(competition))
            return True

        return await self._database.write(work, touches={competition.id})

    async def every(self, state: CompetitionState) -> tuple[Competition, ...]:
        """List the competitions of a state, the newest first."""
        return await select(
            self._database,
            f"{SELECT} WHERE state = ? ORDER BY created_at DESC, id DESC",
            (int(state),),
            COMPETITION.read,
        )

    async def seen(
        self, viewer: User, *, after: PageKey | None = None, limit: int
    ) -> tuple[Competition, ...]:
        """List competitions that a user sees, newest first by (created_at, id).

        Seen by all whom its visibility names once it was opened, and always by administrators, its organiser, its
        participants and those invited.

        Args:
            viewer: the user.
            after: key of the last one of the previous page.
            limit: most rows.
        """
        behind = "" if after is None else " AND (c.created_at, c.id) < (:created_at, :id)"
        return await select(
            self._database,
            f"SELECT {COMPETITION.columns} FROM {self._seen(viewer)}{behind}"
            " ORDER BY c.created_at DESC, c.id DESC LIMIT :limit",
            {
                **_viewer(viewer),
                **({} if after is None else after._asdict()),
                "limit": limit,
            },
            COMPETITION.read,
        )

    async def count_seen(self, viewer: User) -> int:
        """Count the competitions that a user sees."""
        [count] = await select(
            self._database,
            f"SELECT count(*) FROM {self._seen(viewer)}",
            _viewer(viewer),
            lambda row: int(row[0]),
        )
        return count

    def _seen(self, viewer: User) -> str:
        """The rows `c` that a user sees, and the beginning of further conditions; takes the parameters of `_viewer`."""
        visibility = self._database.dialect.number_in("settings", "visibility")
        rules = [
            f"({may_condition('c', viewer, CHANGE)} AND c.owner_id IN ('', :viewer_id))",
            f"(c.state <> {int(CompetitionState.DRAFT)} AND {may_condition('c', viewer, SEE)})",
            *(
                f"EXISTS (SELECT 1 FROM {table} u WHERE u.competition_id = c.id"
                " AND u.user_name = :viewer_name)"
                for table in ("competition_members", "competition_invitations")
            ),
        ]
        seen = "true" if viewer.role is Role.ADMIN else f"({' OR '.join(rules)})"
        return f"(SELECT competitions.*, {visibility} AS visibility FROM competitions) AS c WHERE {seen}"

    async def count_of(self, owner: str) -> int:
        """Count the competitions of an owner."""
        [count] = await select(
            self._database,
            "SELECT count(*) FROM competitions WHERE owner = ?",
            (owner,),
            lambda row: int(row[0]),
        )
        return count

    async def named(self, name: str, owner: str = "") -> tuple[Competition, ...]:
        """List the competitions of a name, of one owner or all, by owner."""
        where, values = ("", (name,)) if not owner else (" AND owner = ?", (name, owner))
        return await select(
            self._database,
            f"{SELECT} WHERE name = ?{where} ORDER BY owner",
            values,
            COMPETITION.read,
        )

    async def of_user(self, user_name: str) -> frozenset[str]:
        """Return the ids of competitions that a user takes part in, or is invited to."""
        rows = await select(
            self._database,
            "SELECT competition_id FROM competition_members WHERE user_name = :name UNION"
            " SELECT competition_id FROM competition_invitations WHERE user_name = :name",
            {"name": user_name},
            lambda row: str(row[0]),
        )
        return frozenset(rows)

    async def teams_of(
        self, user_name: str, user_id: str, competitions: Sequence[str]
    ) -> tuple[str, ...]:
        """Return a user's teams in some competitions, as participant keys, sorted."""
        places = ", ".join("?" * len(competitions))
        rows = await select(
            self._database,
            "SELECT competition_id, team FROM competition_members WHERE user_name = ?"
            f" AND user_id = ? AND competition_id IN ({places}) ORDER BY competition_id, team",
            (user_name, user_id, *competitions),
            lambda row: participant_key(str(row[0]), str(row[1])),
        )
        return tuple(rows)

    async def merged(self, competition_id: str) -> dict[str, str]:
        """Return the teams of a competition that merged into others, each with that one."""
        rows = await select(
            self._database,
            "SELECT name, merged_into FROM competition_teams WHERE competition_id = ?"
            " AND merged_into <> '' ORDER BY name",
            (competition_id,),
            lambda row: (str(row[0]), str(row[1])),
        )
        return dict(rows)

    async def get(self, competition_id: str) -> Competition | None:
        """Return a competition; None: there is none."""
        return await select_one(
            self._database, f"{SELECT} WHERE id = ?", (competition_id,), COMPETITION.read
        )

    async def facts(self, competition_id: str) -> Facts | None:
        """Return all facts of a competition; None: there is none."""
        return await self._database.read(lambda connection: _facts(connection, competition_id))

    async def change(
        self,
        competition_id: str,
        rule: Callable[[Facts], Facts],
        *,
        merging: Callable[[Facts, Facts], Merging | None] | None = None,
        check: Callable[[Competition, tuple[Competition, ...]], None] | None = None,
        datasets: Collection[tuple[str, str]] = (),
    ) -> Facts | None:
        """Apply a rule in one transaction; None: there is no such competition.

        What `rule` or `check` raises is raised, and nothing is changed. If the competition is open after it, the boards of
        its datasets show no more of scores than its phases do.

        Args:
            competition_id: its id.
            rule: returns the facts after the change.
            merging: says, from the facts before and after, which submissions get another team.
            check: called with a competition that is open after the change with another state or settings, and with the
                other open ones that use one of its datasets.
            datasets: owner and name of those of phases that the rule adds.
        """
        touched: set[str] = {competition_id}
        dialect = self._database.dialect

        def work(connection: Connection) -> Facts | None:
            connection.execute(
                f"SELECT id FROM competitions WHERE id = ?{dialect.for_update}", (competition_id,)
            ).fetchone()
            before = _facts(connection, competition_id)
            if before is None:
                return None
            after = rule(before)
            changed = after.competition
            if changed.state is CompetitionState.OPEN and changed != before.competition:
                if check is not None:
                    used = open_with(connection, changed.settings.datasets)
                    check(changed, tuple(one for one in used if one.id != competition_id))
                show_no_more(connection, dialect, changed)
            _store(connection, before, after)
            moved = merging(before, after) if merging is not None else None
            if moved is not None:
                _move(connection, competition_id, moved)
            return after

        known = await self.get(competition_id)
        for dataset in {*datasets, *(known.settings.datasets if known is not None else ())}:
            touched.add(board_key(*dataset))
        return await self._database.write(work, touches=touched)

    async def remove(self, competition_id: str) -> bool:
        """Remove a competition that is not open, with its teams; False: it is not there, or open."""

        def work(connection: Connection) -> bool:
            gone = connection.execute(
                "DELETE FROM competitions WHERE id = ? AND state <> ?",
                (competition_id, int(CompetitionState.OPEN)),
            ).rowcount
            if not gone:
                return False
            for part in _PARTS.values():
                connection.execute(
                    f"DELETE FROM {part.table} WHERE competition_id = ?", (competition_id,)
                )
            return True

        return await self._database.write(work, touches={competition_id})

    async def submissions(
        self,
        competition_id: str,
        dataset_owner: str,
        dataset: str,
        baselines: Collection[str] = (),
    ) -> tuple[PhaseSubmission, ...]:
        """List what a competition's teams submitted to a dataset, and baselines, oldest first, as standings need it.

        Scores are those of the version that the dataset's board shows.
        """
        names = {f"baseline_{index}": name for index, name in enumerate(baselines)}
        among = f" OR s.id IN ({', '.join(f':{name}' for name in names)})" if names else ""
        prefix = participant_key(competition_id, "")
        return await select(
            self._database,
            f"SELECT {_OF_SUBMISSION} FROM submissions s LEFT JOIN submission_scores r"
            f" ON r.submission_id = s.id AND r.evaluation = {SHOWN}"
            " WHERE s.dataset_owner = :owner AND s.dataset = :dataset AND s.is_test = 0"
            f" AND s.rerun_of = '' AND (substr(s.team, 1, :length) = :prefix{among})"
            " ORDER BY s.submitted_at, s.id",
            {
                "owner": dataset_owner,
                "dataset": dataset,
                "prefix": prefix,
                "length": len(prefix),
                **names,
            },
            partial(_submission, baselines=frozenset(baselines)),
        )

    async def counts(
        self, competition_id: str, phase: Phase, end: float, baselines: Collection[str] = ()
    ) -> tuple[int, int]:
        """Count what teams submitted in a phase that ends at `end`, and how much of it is not over."""
        names = {f"baseline_{index}": name for index, name in enumerate(baselines)}
        without = f" AND id NOT IN ({', '.join(f':{name}' for name in names)})" if names else ""
        prefix = participant_key(competition_id, "")
        [found] = await select(
            self._database,
            "SELECT count(*), coalesce(sum(CASE WHEN state < 4 THEN 1 ELSE 0 END), 0)"
            " FROM submissions WHERE dataset_owner = :owner AND dataset = :dataset"
            " AND is_test = 0 AND rerun_of = '' AND submitted_at >= :since"
            f" AND submitted_at < :until AND substr(team, 1, :length) = :prefix{without}",
            {
                "owner": phase.dataset_owner,
                "dataset": phase.dataset,
                "since": phase.starts_at,
                "until": end,
                "prefix": prefix,
                "length": len(prefix),
                **names,
            },
            lambda row: (int(row[0]), int(row[1])),
        )
        return found

    async def models(
        self,
        dataset_owner: str,
        dataset: str,
        *,
        live: Collection[tuple[str, str]],
        since: float,
        until: float,
    ) -> dict[str, int]:
        """Count the checkpoints that each user's sessions on a dataset saved from `since` on and before `until`.

        A user with sessions and no checkpoint has 0. `live`: id and owner of the live sessions on the dataset.
        """
        ended = await select(
            self._database,
            "SELECT DISTINCT u.session_id, s.owner FROM dataset_uses u"
            " JOIN sessions s ON s.id = u.session_id WHERE u.owner = ? AND u.name = ?"
            " AND s.created_at < ?",
            (dataset_owner, dataset, until),
            lambda row: (str(row[0]), str(row[1])),
        )
        owners = {**dict(ended), **dict(live)}

        def work(connection: Connection) -> dict[str, int]:
            counts = dict.fromkeys(sorted(set(owners.values())), 0)
            for session_id, owner in owners.items():
                (count,) = connection.execute(
                    "SELECT count(*) FROM checkpoints WHERE session_id = ? AND saved_at >= ? AND saved_at < ?",
                    (session_id, since, until),
                ).fetchone()
                counts[owner] += int(count)
            return counts

        return await self._database.read(work)


def _viewer(viewer: User) -> dict[str, Any]:
    return {**viewer_parameters(viewer), "viewer_id": viewer.id}


def _submission(row: Sequence[Any], *, baselines: frozenset[str]) -> PhaseSubmission:
    name, owner, team, submitted_at, ended_at, state, session_id, gpu_seconds, digest = row[:9]
    score_state, score, private, error, rows = row[9:]
    is_scored = score_state == _SCORED
    return PhaseSubmission(
        id=name,
        owner=owner,
        key="" if name in baselines else team,
        submitted_at=submitted_at,
        scored_at=ended_at,
        score=score if is_scored else None,
        private=private if is_scored else None,
        standard_error=standard_error(score, error, rows)
        if is_scored and score is not None
        else None,
        is_over=state >= _SCORED,
        is_counted=state != _FAILED,
        session_id=session_id,
        gpu_seconds=gpu_seconds,
        digest=digest,
    )


def _facts(connection: Connection, competition_id: str) -> Facts | None:
    row = connection.execute(f"{SELECT} WHERE id = ?", (competition_id,)).fetchone()
    if row is None:
        return None
    parts: dict[str, Any] = {}
    for name, part in _PARTS.items():
        found = connection.execute(
            f"SELECT {part.rows.columns} FROM {part.table} WHERE competition_id = ?"
            f" ORDER BY {_ORDER.get(name, ', '.join(part.key))}",
            (competition_id,),
        ).fetchall()
        parts[name] = tuple(part.rows.read(one) for one in found)
    return Facts(competition=COMPETITION.read(row), **parts)


def _store(connection: Connection, before: Facts, after: Facts) -> None:
    """Store what differs."""
    key = before.competition.id
    if after.competition != before.competition:
        connection.execute(
            "UPDATE competitions SET settings = :settings, state = :state, closed_at = :closed_at"
            " WHERE id = :id",
            _values(after.competition),
        )
    for name, part in _PARTS.items():
        old, new = getattr(before, name), getattr(after, name)
        where = " AND ".join(f"{column} = :{column}" for column in part.key)
        were, are = frozenset(old), frozenset(new)
        for one in old:
            if one not in are:
                connection.execute(
                    f"DELETE FROM {part.table} WHERE competition_id = :competition_id AND {where}",
                    {"competition_id": key, **{name: getattr(one, name) for name in part.key}},
                )
        names = tuple(one.name for one in fields(part.kind))
        places = ", ".join(f":{name}" for name in names)
        for one in new:
            if one not in were:
                connection.execute(
                    f"INSERT INTO {part.table} (competition_id, {', '.join(names)})"
                    f" VALUES (:competition_id, {places})",
                    {"competition_id": key, **part.rows.values(one)},
                )


def _move(connection: Connection, competition_id: str, moved: Merging) -> None:
    for team in sorted(moved.teams):
        connection.execute(
            f"UPDATE submissions SET team = :into, changed = {NEXT_CHANGE}"
            " WHERE team = :team AND dataset_owner = :owner"
            " AND dataset = :dataset AND submitted_at >= :since",
            {
                "into": participant_key(competition_id, moved.into),
                "team": participant_key(competition_id, team),
                "owner": moved.dataset_owner,
                "dataset": moved.dataset,
                "since": moved.since,
            },
        )


def _values(competition: Competition) -> dict[str, Any]:
    return {
        **COMPETITION.values(competition),
        "settings": encode_settings(competition.settings),
        "state": int(competition.state),
    }
