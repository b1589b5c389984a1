"""Submissions, and their scores in each version of a board's scores.

A re-evaluation is a new version: all kept predictions are evaluated again, while the board shows the version before.
What is scored meanwhile joins it, so that the version that is shown at last misses nothing.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.boards.values import NOT_COUNTED, SubmissionCause, SubmissionState
from controlplane.domain.identity import Role
from controlplane.history.board_values import (
    SUBMITTED,
    BoardCounts,
    EvaluationState,
    PastSubmissions,
    ScoreRow,
    SubmissionEntry,
    SubmissionPage,
    SubmissionRow,
    board_key,
)
from controlplane.history.sql.boards import delete_board
from controlplane.history.sql.queries import NO_LIMIT, RowType, select, select_one
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.values import PageKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from controlplane.domain.identity import User
    from controlplane.history.sql.interface import Connection, Database

_SUBMISSION: Final = RowType(
    SubmissionRow,
    is_test=bool,
    state=SubmissionState,
    cause=SubmissionCause,
    request_id=lambda text: text or "",
)
_SCORE: Final = RowType(ScoreRow, state=SubmissionState, cause=SubmissionCause)
_ROW_WIDTH: Final = len(_SUBMISSION.names)
_INSERT: Final = _SUBMISSION.insert("submissions")
_PUT_SCORE: Final = _SCORE.upsert("submission_scores", ("submission_id", "evaluation"))
_SELECT: Final = f"SELECT {_SUBMISSION.columns} FROM submissions"
_SELECT_SCORE: Final = f"SELECT {_SCORE.columns} FROM submission_scores"
_COLUMNS: Final = (
    f"{', '.join(f's.{name}' for name in _SUBMISSION.names)},"
    f" {', '.join(f'r.{name}' for name in _SCORE.names)}"
)
SHOWN: Final = (
    "(SELECT coalesce(max(e.evaluation), 1) FROM board_evaluations e"
    " WHERE e.dataset_owner = s.dataset_owner AND e.dataset = s.dataset AND e.shown_at > 0)"
)
"""The version of the scores of the submission `s` that its board shows."""
NEXT_CHANGE: Final = (
    "(SELECT coalesce(max(c.changed), 0) + 1 FROM submissions c WHERE c.changed > 0"
    " AND c.dataset_owner = submissions.dataset_owner AND c.dataset = submissions.dataset)"
)
"""The number of the next change among those of the dataset of a submission. Changes touch the key of their board: they are
committed in this order."""
_MARK_CHANGED: Final = f"UPDATE submissions SET changed = {NEXT_CHANGE} WHERE id = ?"
_JOIN: Final = (
    f"SELECT {_COLUMNS} FROM submissions s LEFT JOIN submission_scores r"
    " ON r.submission_id = s.id AND r.evaluation ="
)
CLOCKS_APART_S: Final = 5.0
"""How far clocks of control planes are apart at most. A time further ahead is wrong, and later ones do not follow it."""
TICK_S: Final = 1e-6
"""Between submissions that are as old by the clocks: each is later than those that were accepted before."""
_FAILED: Final = "CASE WHEN coalesce(r.state, s.state) = 5 THEN 1 ELSE 0 END"
_OWN: Final = (
    "CASE WHEN s.owner = :user AND s.owner_id IN ('', :user_id) OR :team <> '' AND s.team = :team"
    " THEN 1 ELSE 0 END"
)
_COUNTS: Final = (
    f"SELECT s.dataset_owner, s.dataset, count(*), sum({_FAILED}), sum({_FAILED} * {_OWN}),"
    " max(CASE WHEN r.private IS NULL THEN 0 ELSE 1 END)"
    " FROM submissions s LEFT JOIN submission_scores r"
    f" ON r.submission_id = s.id AND r.evaluation = {SHOWN}"
    " WHERE s.is_test = 0 AND s.rerun_of = '' GROUP BY s.dataset_owner, s.dataset"
)
_UNFINISHED: Final = "state < 4"
_OF_PARTICIPANT: Final = (
    # Who changes the team takes along what was submitted before; so does the team that he leaves.
    "dataset_owner = :dataset_owner AND dataset = :dataset AND is_test = 0"
    " AND rerun_of = '' AND (owner = :owner OR (:team <> '' AND team = :team) OR {others})"
)
_TO_EVALUATE: Final = (
    # Re-runs, too: their scores are compared with those of what they repeat.
    "dataset_owner = :dataset_owner AND dataset = :dataset AND is_test = 0"
    " AND prediction_digest <> '' AND state >= 4"
    " AND NOT EXISTS (SELECT 1 FROM submission_scores r"
    " WHERE r.submission_id = submissions.id AND r.evaluation = :evaluation)"
)
_FIXED: Final = frozenset(
    {
        *("id", "number", "owner", "dataset_owner", "dataset", "submitted_at", "is_test"),
        *("request_id", "session_id", "rerun_of"),
    }
)


class Added(NamedTuple):
    """The result of adding a submission; `is_new`: False: the row of an earlier call with the same request id."""

    row: SubmissionRow
    is_new: bool


class KeptUntil(NamedTuple):
    """For sessions of steps, the latest end of their submission of which they are not kept any more.

    Attributes:
        predicted: of predictions but those of dry runs.
        scored: of evaluations that gave a score.
        failed: of others: evaluations that failed, and predictions of dry runs.
    """

    predicted: float
    scored: float
    failed: float


class BoardMark(NamedTuple):
    """Up to where the submissions to a dataset were read.

    Attributes:
        evaluation: the version of their scores.
        first: id of the first submission: others after the dataset was purged and made again.
        changed: number of the last change.
    """

    evaluation: int
    first: str
    changed: int


class BoardReading(NamedTuple):
    """The submissions to a dataset that changed since a mark.

    Attributes:
        entries: oldest first.
        is_whole: these are all submissions.
        pending: of a re-evaluation, an evaluation that is not over: one that fails, else one that cannot start, else
            one with a session; None: none.
    """

    state: EvaluationState
    mark: BoardMark
    entries: tuple[SubmissionEntry, ...]
    is_whole: bool
    pending: ScoreRow | None = None


class SqlSubmissions:
    """Submissions to datasets. A session's removal leaves them; they go when the last version of the dataset is purged."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self,
        row: SubmissionRow,
        *,
        since: float,
        check: Callable[[PastSubmissions], None],
        others: Collection[str] = (),
    ) -> Added:
        """Add a submission; of an owner's calls with one request id, the later ones give the row of the first.

        Its time is later than that of all submissions to the dataset that were added before, if clocks differ by seconds.

        `check` gets what the participant (the owner, the team, and the users `others`) submitted to the dataset after
        the Unix time `since`. It runs in the transaction that adds the row, also for a test submission; an exception of it is
        raised, and nothing is added.
        """
        key = {"dataset_owner": row.dataset_owner, "dataset": row.dataset}

        def work(connection: Connection) -> Added:
            if row.request_id:
                known = connection.execute(
                    f"{_SELECT} WHERE owner = ? AND request_id = ?", (row.owner, row.request_id)
                ).fetchone()
                if known is not None:
                    return Added(_SUBMISSION.read(known), is_new=False)
            check(_past(connection, row, since, others))
            highest, newest = connection.execute(
                "SELECT coalesce(max(number), 0), coalesce(max(submitted_at), 0.0) FROM submissions"
                " WHERE dataset_owner = :dataset_owner AND dataset = :dataset",
                key,
            ).fetchone()
            at = _after(float(newest), row.submitted_at)
            numbered = replace(row, number=int(highest) + 1, submitted_at=at)
            connection.execute(_INSERT, _values(numbered))
            connection.execute(_MARK_CHANGED, (row.id,))
            return Added(numbered, is_new=True)

        board = board_key(row.dataset_owner, row.dataset)
        touches = {board, row.id, f"submitter/{row.owner}"}
        return await self._database.write(work, touches=touches, notifies=(SUBMITTED,))

    async def past(
        self,
        *,
        dataset_owner: str,
        dataset: str,
        owner: str,
        team: str,
        since: float,
        others: Collection[str] = (),
    ) -> PastSubmissions:
        """Return what `check` of `add` gets."""
        row = _Participant(dataset_owner, dataset, owner, team)
        return await self._database.read(lambda connection: _past(connection, row, since, others))

    async def get(self, submission_id: str) -> SubmissionRow | None:
        """Return a submission; None: there is none."""
        return await select_one(
            self._database, f"{_SELECT} WHERE id = ?", (submission_id,), _SUBMISSION.read
        )

    async def known(self, submission_ids: Collection[str]) -> frozenset[str]:
        """Return those of some ids that are of submissions."""
        dialect = self._database.dialect
        found = await select(
            self._database,
            f"SELECT id FROM submissions WHERE {dialect.among('id', 'ids')}",
            {"ids": dialect.many(sorted(submission_ids))},
            lambda row: str(row[0]),
        )
        return frozenset(found)

    async def of_request(self, owner: str, request_id: str) -> SubmissionRow | None:
        """Return an owner's submission by its request id; None: there is none."""
        return await select_one(
            self._database,
            f"{_SELECT} WHERE owner = ? AND request_id = ?",
            (owner, request_id),
            _SUBMISSION.read,
        )

    async def entry(self, submission_id: str) -> SubmissionEntry | None:
        """Return a submission with its score in the version that is shown; None: there is none."""
        return await select_one(
            self._database, f"{_JOIN} {SHOWN} WHERE s.id = ?", (submission_id,), _read_entry
        )

    async def ids_with_prefix(
        self, prefix: str, *, viewer: User, limit: int
    ) -> tuple[tuple[str, ...], int]:
        """Return the newest ids that begin so among the submissions that a user may see, and how many there are.

        These are the user's own ones and those to their datasets; for administrators all.
        """
        found = await select(
            self._database,
            "SELECT id, count(*) OVER () FROM submissions WHERE substr(id, 1, :length) = :prefix"
            " AND (:sees_all = 1 OR dataset_owner = :name"
            " OR (owner = :name AND owner_id IN ('', :user_id)))"
            " ORDER BY submitted_at DESC, id LIMIT :limit",
            {
                "prefix": prefix,
                "length": len(prefix),
                "sees_all": int(viewer.role is Role.ADMIN),
                "name": viewer.name,
                "user_id": viewer.id,
                "limit": limit,
            },
            lambda row: (str(row[0]), int(row[1])),
        )
        return tuple(one for one, _ in found), found[0][1] if found else 0

    async def of_session(self, session_id: str) -> tuple[SubmissionRow, ...]:
        """List the submissions of a session, oldest first."""
        return await select(
            self._database,
            f"{_SELECT} WHERE session_id = ? ORDER BY submitted_at, id",
            (session_id,),
            _SUBMISSION.read,
        )

    async def reruns(self, dataset_owner: str, dataset: str) -> tuple[SubmissionEntry, ...]:
        """List the re-runs of submissions to a dataset with their scores, oldest first."""
        return await select(
            self._database,
            f"{_JOIN} {SHOWN} WHERE s.rerun_of <> '' AND s.dataset_owner = ? AND s.dataset = ?"
            " ORDER BY s.submitted_at, s.id",
            (dataset_owner, dataset),
            _read_entry,
        )

    async def change(
        self,
        submission_id: str,
        from_states: Collection[SubmissionState],
        *,
        score: ScoreRow | None = None,
        if_shown: int = 0,
        **fields: Any,
    ) -> SubmissionRow | None:
        """Change fields of a submission in one of these states; return the changed row, None: it was in none of them.

        `score` is stored in the same transaction; its version 0 stands for the one that is shown. `if_shown`: nothing
        changes, and the result is None, unless this version of scores is shown; 0: whichever is. `fields` are of
        SubmissionRow, except those that say what was submitted by whom.
        """
        if unknown := fields.keys() - set(_SUBMISSION.names) or fields.keys() & _FIXED:
            msg = f"not changeable: {sorted(unknown)}"
            raise TypeError(msg)
        known = await self.get(submission_id)
        if known is None:
            return None

        def work(connection: Connection) -> SubmissionRow | None:
            row = _get(connection, submission_id)
            if row is None or row.state not in from_states:
                return None
            shown = _state(connection, row.dataset_owner, row.dataset).shown if score else 0
            if if_shown not in {0, shown}:
                return None
            changed = replace(row, **fields)
            _update(connection, "submissions", {"id": submission_id}, fields)
            connection.execute(_MARK_CHANGED, (submission_id,))
            if score is not None:
                _put_scores(connection, [replace(score, evaluation=score.evaluation or shown)])
            return changed

        touches = {submission_id, board_key(known.dataset_owner, known.dataset)}
        return await self._database.write(work, touches=touches)

    async def unfinished(self) -> tuple[SubmissionRow, ...]:
        """List the submissions that are not over, oldest first."""
        return await select(
            self._database,
            f"{_SELECT} WHERE {_UNFINISHED} ORDER BY submitted_at, id",
            (),
            _SUBMISSION.read,
        )

    async def of_owner(
        self, owner: str, *, after: PageKey | None = None, limit: int | None = None
    ) -> SubmissionPage:
        """List a user's submissions with the scores that are shown, newest first. `after`: `next` of the page before."""
        return await self._page("s.owner = :owner", {"owner": owner}, after, limit)

    async def of_dataset(
        self,
        dataset_owner: str,
        dataset: str,
        *,
        after: PageKey | None = None,
        limit: int | None = None,
    ) -> SubmissionPage:
        """List all submissions to a dataset, test ones included; as `of_owner`."""
        return await self._page(
            "s.dataset_owner = :dataset_owner AND s.dataset = :dataset",
            {"dataset_owner": dataset_owner, "dataset": dataset},
            after,
            limit,
        )

    async def entries(
        self, dataset_owner: str, dataset: str, evaluation: int = 0
    ) -> tuple[SubmissionEntry, ...]:
        """List all submissions to a dataset but test ones and re-runs, with their scores in a version (0: shown), oldest first.

        A version after the newest has none.
        """
        return (await self.read_board(dataset_owner, dataset, evaluation)).entries

    async def read_board(
        self,
        dataset_owner: str,
        dataset: str,
        evaluation: int = 0,
        *,
        since: BoardMark | None = None,
    ) -> BoardReading:
        """Read what `entries` lists; of the same version of scores only what changed since the mark of a reading.

        A version after the newest has no entries.
        """
        return await self._database.read(
            lambda connection: _read_board(connection, (dataset_owner, dataset), evaluation, since)
        )

    async def counts(
        self, user: str, user_id: str, team: str
    ) -> Mapping[tuple[str, str], BoardCounts]:
        """Count the submissions to each dataset that has any, by owner and name; for a user in a team ("": none)."""

        def work(connection: Connection) -> Mapping[tuple[str, str], BoardCounts]:
            evaluated = connection.execute(
                "SELECT DISTINCT dataset_owner, dataset FROM board_evaluations"
            ).fetchall()
            states = {(owner, name): _state(connection, owner, name) for owner, name in evaluated}
            values = {"user": user, "user_id": user_id, "team": team}
            return {
                (owner, name): BoardCounts(
                    int(every),
                    int(failed),
                    int(own_failed),
                    bool(has_private),
                    states.get((owner, name), EvaluationState()),
                )
                for owner, name, every, failed, own_failed, has_private in connection.execute(
                    _COUNTS, values
                )
            }

        return await self._database.read(work)

    async def has_any(self, dataset_owner: str, dataset: str) -> bool:
        """Whether a dataset has submissions, test ones apart."""
        found = await select(
            self._database,
            "SELECT 1 FROM submissions WHERE dataset_owner = ? AND dataset = ?"
            " AND is_test = 0 AND rerun_of = '' LIMIT 1",
            (dataset_owner, dataset),
            bool,
        )
        return bool(found)

    async def scores_of(self, submission_id: str) -> tuple[ScoreRow, ...]:
        """List the scores of a submission, by version."""
        return await select(
            self._database,
            f"{_SELECT_SCORE} WHERE submission_id = ? ORDER BY evaluation",
            (submission_id,),
            _SCORE.read,
        )

    async def change_score(
        self,
        submission_id: str,
        evaluation: int,
        from_states: Collection[SubmissionState],
        **fields: Any,
    ) -> ScoreRow | None:
        """Change fields of a ScoreRow in one of these states; return the changed row, None: it was in none of them."""
        if unknown := fields.keys() - set(_SCORE.names):
            msg = f"not changeable: {sorted(unknown)}"
            raise TypeError(msg)
        of = await self.get(submission_id)
        if of is None:
            return None
        key = {"submission_id": submission_id, "evaluation": evaluation}

        def work(connection: Connection) -> ScoreRow | None:
            found = connection.execute(
                f"{_SELECT_SCORE} WHERE submission_id = :submission_id AND evaluation = :evaluation",
                key,
            ).fetchone()
            if found is None or (row := _SCORE.read(found)).state not in from_states:
                return None
            changed = replace(row, **fields)
            _update(connection, "submission_scores", key, fields)
            connection.execute(_MARK_CHANGED, (submission_id,))
            return changed

        touches = {submission_id, board_key(of.dataset_owner, of.dataset)}
        return await self._database.write(work, touches=touches)

    async def unfinished_scores(
        self, dataset_owner: str, dataset: str, *, limit: int
    ) -> tuple[SubmissionEntry, ...]:
        """List what a re-evaluation has yet to evaluate: what has a session first, then the oldest submissions."""
        return await select(
            self._database,
            f"SELECT {_COLUMNS} FROM submission_scores r JOIN submissions s ON s.id = r.submission_id"
            f" WHERE r.{_UNFINISHED} AND s.dataset_owner = ? AND s.dataset = ?"
            " ORDER BY CASE WHEN r.session_id = '' THEN 1 ELSE 0 END, s.submitted_at, s.id LIMIT ?",
            (dataset_owner, dataset, limit),
            _read_entry,
        )

    async def evaluation(self, dataset_owner: str, dataset: str) -> EvaluationState:
        """Return the versions of a board's scores; of a board without any, the first."""
        return await self._database.read(
            lambda connection: _state(connection, dataset_owner, dataset)
        )

    async def running_evaluations(self) -> tuple[tuple[str, str], ...]:
        """List the datasets, by owner and name, whose newest version of scores is not shown yet."""
        return await select(
            self._database,
            "SELECT DISTINCT dataset_owner, dataset FROM board_evaluations WHERE shown_at = 0"
            " ORDER BY dataset_owner, dataset",
            (),
            lambda row: (str(row[0]), str(row[1])),
        )

    async def begin_evaluation(
        self, dataset_owner: str, dataset: str, *, dataset_version: int = 0, at: float
    ) -> EvaluationState | None:
        """Begin a new version of a board's scores, with a ScoreRow in EVALUATING for each kept prediction.

        None: the one before is not shown yet, or there are no predictions. `dataset_version`: of the dataset whose
        evaluation is used; 0: of each submission.
        """
        key = {"dataset_owner": dataset_owner, "dataset": dataset}

        def work(connection: Connection) -> EvaluationState | None:
            before = _state(connection, dataset_owner, dataset)
            new = before.newest + 1
            if before.is_running or not _join_evaluation(connection, key, new):
                return None
            connection.execute(
                "INSERT INTO board_evaluations"
                " (dataset_owner, dataset, evaluation, dataset_version, begun_at, shown_at)"
                " VALUES (?, ?, ?, ?, ?, 0)",
                (dataset_owner, dataset, new, dataset_version, at),
            )
            return _state(connection, dataset_owner, dataset)

        touches = {board_key(dataset_owner, dataset)}
        return await self._database.write(work, touches=touches, notifies=(SUBMITTED,))

    async def show_evaluation(self, dataset_owner: str, dataset: str, *, at: float) -> bool:
        """Show the newest version, once all kept predictions are evaluated in it; whether it was shown by this call.

        Predictions that came meanwhile are added to it, as `unfinished_scores`.
        """
        key = {"dataset_owner": dataset_owner, "dataset": dataset}

        def work(connection: Connection) -> bool:
            state = _state(connection, dataset_owner, dataset)
            if not state.is_running or _join_evaluation(connection, key, state.newest):
                return False
            if state.done < state.of:
                return False
            connection.execute(
                "UPDATE board_evaluations SET shown_at = :at WHERE dataset_owner = :dataset_owner"
                " AND dataset = :dataset AND evaluation = :evaluation",
                {**key, "at": at, "evaluation": state.newest},
            )
            return True

        return await self._database.write(work, touches={board_key(dataset_owner, dataset)})

    async def with_sessions(self, before: KeptUntil, *, limit: int) -> tuple[SubmissionRow, ...]:
        """List submissions that are over and name a session of a step that is not kept any more, the earliest end first."""
        return await select(
            self._database,
            # The first condition as in the index.
            f"{_SELECT} WHERE (predict_session_id <> '' OR evaluate_session_id <> '') AND state >= 4"
            " AND ((predict_session_id <> '' AND ended_at <= CASE WHEN is_test = 1 THEN :failed ELSE :predicted END)"
            " OR (evaluate_session_id <> '' AND ended_at <= CASE WHEN state = 4 THEN :scored ELSE :failed END))"
            " ORDER BY ended_at, id LIMIT :limit",
            {**before._asdict(), "limit": limit},
            _SUBMISSION.read,
        )

    async def scores_with_sessions(self, *, before: float, limit: int) -> tuple[ScoreRow, ...]:
        """List re-evaluations that were over before this time and name their session, the earliest end first."""
        return await select(
            self._database,
            f"{_SELECT_SCORE} WHERE state >= 4 AND ended_at < ? AND session_id <> ''"
            " ORDER BY ended_at, submission_id LIMIT ?",
            (before, limit),
            _SCORE.read,
        )

    async def _page(
        self, where: str, values: Mapping[str, Any], after: PageKey | None, limit: int | None
    ) -> SubmissionPage:
        behind = "" if after is None else " AND (s.submitted_at, s.id) < (:after_at, :after_id)"
        most = NO_LIMIT - 1 if limit is None else limit
        rows = await select(
            self._database,
            f"{_JOIN} {SHOWN} WHERE {where}{behind} ORDER BY s.submitted_at DESC, s.id DESC LIMIT :limit",
            {
                **values,
                **({} if after is None else {"after_at": after.created_at, "after_id": after.id}),
                "limit": most + 1,
            },
            _read_entry,
        )
        found = rows[:most]
        more = len(rows) > most and found
        last = found[-1].row if more else None
        return SubmissionPage(found, None if last is None else PageKey(last.submitted_at, last.id))


def delete_submissions(connection: Connection, dataset_owner: str, dataset: str) -> None:
    """Delete a dataset's submissions, scores and board, and release the predictions; part of a larger transaction."""
    key = (dataset_owner, dataset)
    rows = connection.execute(
        "SELECT DISTINCT prediction_digest FROM submissions WHERE dataset_owner = ? AND dataset = ?",
        key,
    ).fetchall()
    connection.execute(
        "DELETE FROM submission_scores WHERE submission_id IN"
        " (SELECT id FROM submissions WHERE dataset_owner = ? AND dataset = ?)",
        key,
    )
    for table in ("submissions", "board_evaluations"):
        connection.execute(f"DELETE FROM {table} WHERE dataset_owner = ? AND dataset = ?", key)
    delete_board(connection, dataset_owner, dataset)
    if rows:
        release(connection, dataset_owner, "", [row[0] for row in rows])
        add_kept(connection, dataset_owner, asked=1)


def _after(newest: float, at: float) -> float:
    """Return when a submission of `at` was made, the newest one before it at `newest`: of ties the earlier is better."""
    return newest + TICK_S if 0.0 <= newest - at <= CLOCKS_APART_S else at


class _Participant(NamedTuple):
    dataset_owner: str
    dataset: str
    owner: str
    team: str


def _past(
    connection: Connection,
    row: SubmissionRow | _Participant,
    since: float,
    others: Collection[str],
) -> PastSubmissions:
    names = {f"other_{index}": name for index, name in enumerate(others)}
    among = f"owner IN ({', '.join(f':{name}' for name in names)})" if names else "false"
    rows = connection.execute(
        "SELECT submitted_at, state, cause FROM submissions"
        f" WHERE {_OF_PARTICIPANT.format(others=among)}"
        " AND submitted_at > :since ORDER BY submitted_at, id",
        {
            "dataset_owner": row.dataset_owner,
            "dataset": row.dataset,
            "owner": row.owner,
            "team": row.team,
            "since": since,
            **names,
        },
    ).fetchall()
    failed = int(SubmissionState.FAILED)
    return PastSubmissions(
        counted=tuple(at for at, state, _ in rows if state != failed),
        failed=tuple(
            at for at, state, cause in rows if state == failed and cause not in NOT_COUNTED
        ),
    )


def _get(connection: Connection, submission_id: str) -> SubmissionRow | None:
    row = connection.execute(f"{_SELECT} WHERE id = ?", (submission_id,)).fetchone()
    return None if row is None else _SUBMISSION.read(row)


def _state(connection: Connection, dataset_owner: str, dataset: str) -> EvaluationState:
    key = {"dataset_owner": dataset_owner, "dataset": dataset}
    newest, shown = (
        connection.execute(
            "SELECT evaluation, dataset_version FROM board_evaluations WHERE dataset_owner = :dataset_owner"
            f" AND dataset = :dataset{which} ORDER BY evaluation DESC LIMIT 1",
            key,
        ).fetchone()
        for which in ("", " AND shown_at > 0")
    )
    if newest is None:
        return EvaluationState()
    number, version = int(newest[0]), int(newest[1])
    shown, shown_version = (1, 0) if shown is None else (int(shown[0]), int(shown[1]))
    if number == shown:
        return EvaluationState(number, number, 0, 0, version, version)
    done, of = connection.execute(
        "SELECT coalesce(sum(CASE WHEN r.state >= 4 THEN 1 ELSE 0 END), 0), count(*)"
        " FROM submission_scores r JOIN submissions s ON s.id = r.submission_id"
        " WHERE s.dataset_owner = :dataset_owner AND s.dataset = :dataset AND r.evaluation = :evaluation",
        {**key, "evaluation": number},
    ).fetchone()
    return EvaluationState(shown, number, int(done), int(of), version, shown_version)


def _read_board(
    connection: Connection, of: tuple[str, str], evaluation: int, since: BoardMark | None
) -> BoardReading:
    state = _state(connection, *of)
    version = evaluation or state.shown
    if version > state.newest:
        return BoardReading(state, BoardMark(version, "", 0), (), is_whole=True)
    first = connection.execute(
        "SELECT id FROM submissions WHERE dataset_owner = ? AND dataset = ? ORDER BY number LIMIT 1",
        of,
    ).fetchone()
    (changed,) = connection.execute(
        "SELECT coalesce(max(changed), 0) FROM submissions"
        " WHERE dataset_owner = ? AND dataset = ? AND changed > 0",
        of,
    ).fetchone()
    mark = BoardMark(version, "" if first is None else str(first[0]), int(changed))
    is_whole = since is None or since[:2] != mark[:2]
    changes = "" if is_whole else " AND s.changed > 0 AND s.changed > :since"
    rows = connection.execute(
        f"{_JOIN} :evaluation WHERE s.dataset_owner = :dataset_owner AND s.dataset = :dataset"
        f" AND s.is_test = 0 AND s.rerun_of = ''{changes} ORDER BY s.submitted_at, s.id",
        {
            "dataset_owner": of[0],
            "dataset": of[1],
            "evaluation": version,
            **({} if since is None or is_whole else {"since": since.changed}),
        },
    )
    pending = _pending(connection, of, state.newest) if state.is_running else None
    return BoardReading(state, mark, tuple(map(_read_entry, rows)), is_whole, pending)


def _pending(connection: Connection, of: tuple[str, str], evaluation: int) -> ScoreRow | None:
    """Return the unfinished evaluation that says most on why a re-evaluation is not over."""
    row = connection.execute(
        f"SELECT {', '.join(f'r.{name}' for name in _SCORE.names)}"
        " FROM submission_scores r JOIN submissions s ON s.id = r.submission_id"
        f" WHERE r.{_UNFINISHED} AND s.dataset_owner = :dataset_owner AND s.dataset = :dataset"
        " AND r.evaluation = :evaluation ORDER BY CASE WHEN r.failing_since > 0 THEN 0"
        " WHEN r.message <> '' THEN 1 WHEN r.session_id <> '' THEN 2 ELSE 3 END,"
        " s.submitted_at, s.id LIMIT 1",
        {"dataset_owner": of[0], "dataset": of[1], "evaluation": evaluation},
    ).fetchone()
    return None if row is None else _SCORE.read(row)


def _join_evaluation(connection: Connection, key: Mapping[str, str], evaluation: int) -> int:
    """Add the kept predictions that a version does not have; return how many there were."""
    rows = connection.execute(
        f"SELECT id FROM submissions WHERE {_TO_EVALUATE} ORDER BY submitted_at, id",
        {**key, "evaluation": evaluation},
    ).fetchall()
    _put_scores(
        connection,
        (
            ScoreRow(submission_id=row[0], evaluation=evaluation, state=SubmissionState.EVALUATING)
            for row in rows
        ),
    )
    connection.executemany(_MARK_CHANGED, [(row[0],) for row in rows])
    return len(rows)


def _put_scores(connection: Connection, scores: Iterable[ScoreRow]) -> None:
    rows = [
        {**_SCORE.values(one), "state": int(one.state), "cause": int(one.cause)} for one in scores
    ]
    connection.executemany(_PUT_SCORE, rows)


def _update(
    connection: Connection, table: str, key: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
    if fields:
        connection.execute(
            f"UPDATE {table} SET {', '.join(f'{name} = :{name}' for name in fields)}"
            f" WHERE {' AND '.join(f'{name} = :{name}' for name in key)}",
            {**key, **{name: _plain(value) for name, value in fields.items()}},
        )


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else value


def _values(row: SubmissionRow) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in _SUBMISSION.values(row).items()}
    return {**values, "request_id": row.request_id or None}


def _read_entry(row: Sequence[Any]) -> SubmissionEntry:
    score = row[_ROW_WIDTH:]
    return SubmissionEntry(
        _SUBMISSION.read(row[:_ROW_WIDTH]), None if score[0] is None else _SCORE.read(score)
    )
