"""Takes submissions, finds them for those who may see them, and begins re-evaluations."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.core.paging import cursor_behind, key_in, page_size
from controlplane.datasets.references import DatasetReference, parse_dataset
from controlplane.domain.boards.submission_limits import longest_window, next_submission
from controlplane.domain.errors import (
    AmbiguousReference,
    InvalidRequest,
    NotFound,
    StateConflict,
)
from controlplane.domain.identity import Role, UserCaller
from controlplane.history.board_values import SubmissionRow
from controlplane.history.values import CheckpointState
from controlplane.submissions.dataset_trees import no_dry_runs, trees_of
from controlplane.submissions.limit_error import SubmissionLimitReached
from nsml.common.shell import shell_line
from nsml.common.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.checkpoints.checkpoints import Checkpoints
    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.domain.boards.values import BoardSettings, SubmissionLimit
    from controlplane.domain.identity import User
    from controlplane.domain.values import Session
    from controlplane.history.board_values import (
        EvaluationState,
        PastSubmissions,
        SubmissionEntry,
    )
    from controlplane.history.sql.history import History
    from controlplane.history.values import Checkpoint, DatasetListing
    from controlplane.state.references import References
    from controlplane.submissions.dataset_trees import SubmissionTrees
    from controlplane.submissions.participation import Participation, TeamEntry
    from controlplane.submissions.session_maker import SessionMaker
    from nsml.common.clock import Clock

MOST_REQUEST_ID: Final = 128
MOST_CANDIDATES: Final = 10
"""Of ids that begin alike, named in an error."""
_ID_START: Final = re.compile("[a-z0-9]{1,64}")
MOST_BATCH: Final = 1_000_000
_MOST_ARGS: Final = 4_096
"""Characters of a session's arguments that a board keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to submit; see CreateSubmissionRequest."""

    session: str
    checkpoint: str = ""
    is_test: bool = False
    request_id: str = ""
    batch: int = 0


class Submissions:
    """The use cases.

    Args:
        user: returns a user by name; raises NotFound.
    """

    def __init__(
        self,
        *,
        history: History,
        references: References,
        datasets: Datasets,
        checkpoints: Checkpoints,
        content: Content,
        maker: SessionMaker,
        participation: Participation,
        clock: Clock,
        new_id: Callable[[], str],
        user: Callable[[str], Awaitable[User]],
    ) -> None:
        self._history = history
        self._references = references
        self._datasets = datasets
        self._checkpoints = checkpoints
        self._content = content
        self._maker = maker
        self._participation = participation
        self._clock = clock
        self._new_id = new_id
        self._user = user

    async def create(self, caller: UserCaller, asked: Asked) -> SubmissionRow:
        """Take a submission, or return the one taken before by this request id.

        Raises:
            NotFound: the session, its dataset version or the checkpoint.
            Denied: another user's session.
            InvalidRequest: the request id, or the batch.
            StateConflict: the session or the dataset takes none, the board is closed, or the dataset is of a competition
                that the user cannot submit to now.
            SubmissionLimitReached: too many in a window.
        """
        _check_asked(asked)
        user = caller.user
        if asked.request_id:  # before anything that may have changed since
            earlier = await self._history.submissions.of_request(user.name, asked.request_id)
            if earlier is not None:
                return earlier
        session = await self._references.find_own(caller, asked.session)
        if session.owner != user.name:  # an administrator submits for the owner
            user = await self._user(session.owner)
        _check_source(session)
        listing = await self._dataset(user, session)
        full = f"{listing.dataset.owner}/{listing.dataset.name}"
        checkpoint = await self._checkpoint(session, asked.checkpoint)
        trees = await self._trees(listing)
        if asked.is_test and not trees.dry_run_folder:
            raise no_dry_runs(listing)
        now = self._clock.time()
        settings, team = await self._taking(listing, user, now, is_test=asked.is_test)
        row = SubmissionRow(
            id=self._new_id(),
            owner=user.name,
            owner_id=user.id,
            team=team.key if team is not None else user.team,
            dataset_owner=listing.dataset.owner,
            dataset=listing.dataset.name,
            dataset_version=listing.version.number,
            session_id=session.id,
            session=session.name,
            args=shell_line(session.spec.args or session.spec.argv)[:_MOST_ARGS],
            memo=session.memo,
            checkpoint=checkpoint.name,
            checkpoint_digest=checkpoint.digest or "",
            is_test=asked.is_test,
            batch=asked.batch,
            request_id=asked.request_id,
            submitted_at=now,
            gpu_seconds=gpu_seconds(session, now),
        )

        def check(past: PastSubmissions) -> None:
            if not asked.is_test:
                _check_limits(full, past, settings, now)

        since = now - longest_window(settings)
        added = await self._history.submissions.add(
            row, since=since, check=check, others=team.members if team is not None else ()
        )
        return added.row

    async def _taking(
        self, listing: DatasetListing, user: User, now: float, *, is_test: bool
    ) -> tuple[BoardSettings, TeamEntry | None]:
        """Return the settings that hold for a user, and how they take part in a competition.

        Raises:
            StateConflict: the board is closed, or a competition does not take it now.
        """
        owner, name = listing.dataset.owner, listing.dataset.name
        settings = await self._maker.settings(owner, name)
        if not settings.is_open and not is_test:
            raise StateConflict(
                f"the board of {owner}/{name} is closed", why="its owner takes no submissions"
            )
        team = await self._participation.entry(owner, name, user, now, is_test=is_test)
        if team is not None and team.limit is not None:
            settings = replace(settings, limit=team.limit)
        return settings, team

    async def _trees(self, listing: DatasetListing) -> SubmissionTrees:
        """Return the trees of a version. Raises StateConflict unless it takes submissions."""
        full = f"{listing.dataset.owner}/{listing.dataset.name}"
        try:
            owner = await self._user(listing.dataset.owner)
        except NotFound:
            raise StateConflict(
                f"{full} takes no submissions", why="its owner was removed"
            ) from None
        return await trees_of(self._content, owner, listing)

    async def _dataset(self, user: User, session: Session) -> DatasetListing:
        """Return the version that the session trained on, as its owner sees it now."""
        if not session.spec.datasets:
            raise StateConflict(
                f"{session.name} has no dataset",
                why="a submission is made to the first dataset of its session",
                attempt="nsml run -d DATASET ...",
            )
        first = session.spec.datasets[0]
        reference = DatasetReference(owner=first.owner, name=first.name, version=first.version)
        return await self._datasets.lookup.find(UserCaller(user=user), reference)

    async def _checkpoint(self, session: Session, name: str) -> Checkpoint:
        """Find the checkpoint, or the newest; it may still be on its way to the object store."""
        if not name:
            newest = await self._history.catalogue.newest_durable(session.id)
            if newest is not None:
                return newest
            names = await self._history.catalogue.newest_names(session.id, 1)
            if not names:
                raise NotFound(
                    f"{session.name} has no checkpoint",
                    why="a submission loads one: nsml.save() in the program makes it",
                    attempt=f"nsml logs {session.name}",
                )
            name = names[0]
        found = await self._checkpoints.get(session, name)
        if found.state is CheckpointState.LOST:
            raise StateConflict(
                f"checkpoint {found.name!r} of {session.name} is lost",
                why=found.why_lost,
                attempt=f"nsml model ls {session.name}",
            )
        return found

    async def find(self, caller: UserCaller, text: str) -> SubmissionEntry:
        """Find a submission of the caller, or to a dataset of the caller; administrators find all.

        `text`: its id, or the beginning of it; of the submissions that the caller may see no other may begin so.

        Raises:
            NotFound: there is none that the caller may see.
            AmbiguousReference: several begin so.
        """
        is_possible = _ID_START.fullmatch(text) is not None
        entry = await self._history.submissions.entry(text) if is_possible else None
        if is_possible and (entry is None or not may_see(caller, entry.row)):
            # The same search for an id of another user as for one that does not exist.
            entry = await self._begun(caller, text)
        if entry is None or not may_see(caller, entry.row):
            raise NotFound(f"there is no submission {text[:80]!r}", attempt="nsml submission ls")
        return entry

    async def _begun(self, caller: UserCaller, text: str) -> SubmissionEntry | None:
        """Find the only submission that the caller may see and whose id begins so; raises AmbiguousReference."""
        submissions = self._history.submissions
        ids, count = await submissions.ids_with_prefix(
            text, viewer=caller.user, limit=MOST_CANDIDATES
        )
        if count > 1:
            raise AmbiguousReference(text, ids, count=count, what="submissions")
        return await submissions.entry(ids[0]) if ids else None

    async def page(
        self, caller: UserCaller, board: str, *, size: int, cursor: str
    ) -> tuple[tuple[SubmissionEntry, ...], str]:
        """Return the caller's submissions, or all to a board of the caller, newest first; and the next cursor.

        Raises:
            NotFound, Denied: there is no such dataset, or it is another user's.
            InvalidRequest: the cursor.
        """
        after, limit = key_in(cursor), page_size(size)
        submissions = self._history.submissions
        if not board:
            page = await submissions.of_owner(caller.user.name, after=after, limit=limit)
        else:
            found = await self._datasets.lookup.changeable(caller, parse_dataset(board))
            page = await submissions.of_dataset(
                found.dataset.owner, found.dataset.name, after=after, limit=limit
            )
        shown = tuple(one for one in page.entries if may_see(caller, one.row))
        return shown, cursor_behind(page.next) if page.next is not None else ""

    async def next_at(self, row: SubmissionRow) -> float:
        """When the participant may submit to the dataset again; 0.0: now."""
        settings = await self._maker.settings(row.dataset_owner, row.dataset)
        team = await self._participation.entry_of(row)
        if team is not None and team.limit is not None:
            settings = replace(settings, limit=team.limit)
        if not (window := longest_window(settings)):
            return 0.0
        now = self._clock.time()
        past = await self._history.submissions.past(
            dataset_owner=row.dataset_owner,
            dataset=row.dataset,
            owner=row.owner,
            team=row.team,
            since=now - window,
            others=team.members if team is not None else (),
        )
        return next_submission(past.counted, past.failed, settings, now) or 0.0

    async def rerun(self, row: SubmissionRow) -> SubmissionRow:
        """Predict and evaluate the checkpoint of a submission again, with the same version of the dataset.

        It is its participant's, counts for no limit and is on no board. Raises StateConflict: the session is gone.
        """
        session = await self._references.by_id(row.session_id)
        if session is None:
            raise StateConflict(f"the session {row.session} was removed")
        repeated = SubmissionRow(
            id=self._new_id(),
            owner=row.owner,
            owner_id=row.owner_id,
            team=row.team,
            dataset_owner=row.dataset_owner,
            dataset=row.dataset,
            dataset_version=row.dataset_version,
            session_id=row.session_id,
            session=row.session,
            args=row.args,
            memo=row.memo,
            checkpoint=row.checkpoint,
            checkpoint_digest=row.checkpoint_digest,
            batch=row.batch,
            submitted_at=self._clock.time(),
            gpu_seconds=row.gpu_seconds,
            rerun_of=row.id,
        )
        added = await self._history.submissions.add(repeated, since=0.0, check=lambda _: None)
        return added.row

    async def reevaluate(self, owner: str, dataset: str) -> EvaluationState:
        """Evaluate all kept predictions of a dataset again, with its newest version, as a new version of its scores.

        The leader's loop does it, and shows the scores when the last one is there.

        Raises:
            NotFound: there is no such dataset.
            StateConflict: no predictions, a re-evaluation is not over, or the newest version takes no submissions.
        """
        full = f"{owner}/{dataset}"
        listing = await self._history.catalogue.dataset(owner, dataset)
        if listing is None:
            raise NotFound(f"there is no dataset {full}")
        await self._trees(listing)
        begun = await self._history.submissions.begin_evaluation(
            owner, dataset, dataset_version=listing.version.number, at=self._clock.time()
        )
        if begun is None:
            state = await self._history.submissions.evaluation(owner, dataset)
            why = (
                f"{state.done} of {state.of} predictions are evaluated again by now"
                if state.is_running
                else "there are no predictions"
            )
            raise StateConflict(f"{full} cannot be evaluated again now", why=why)
        return begun


def may_see(caller: UserCaller, row: SubmissionRow) -> bool:
    """Whether a submission is the caller's, or to a dataset of the caller; administrators see all."""
    return is_own(caller, row) or may_see_private(caller, row)


def may_see_private(caller: UserCaller, row: SubmissionRow) -> bool:
    """Whether the caller sees private scores and what the evaluation printed."""
    return caller.user.role is Role.ADMIN or row.dataset_owner == caller.user.name


def is_own(caller: UserCaller, row: SubmissionRow) -> bool:
    """Whether it is the caller's, and not of an earlier user with that name."""
    return row.owner == caller.user.name and row.owner_id in {"", caller.user.id}


def gpu_seconds(session: Session, now: float) -> float:
    """Return the GPU seconds that a session has held until now."""
    ended = sum(one.held_s * one.gpu_thousandths for one in session.attempts) / 1000.0
    if not session.state.holds_devices or not session.started_at:
        return ended
    since = max([session.started_at, *(one.ended_at for one in session.attempts)])
    held = sum(one.resources.gpu_thousandths for one in session.replicas) / 1000.0
    return ended + held * max(now - since, 0.0)


def _check_asked(asked: Asked) -> None:
    if len(asked.request_id) > MOST_REQUEST_ID or "\0" in asked.request_id:
        raise InvalidRequest(f"a request id has at most {MOST_REQUEST_ID} characters")
    if asked.batch > MOST_BATCH:
        raise InvalidRequest(
            f"a batch of {asked.batch}: at most {MOST_BATCH:,}", attempt="nsml submit -b 256 ..."
        )


def _check_source(session: Session) -> None:
    """Raise StateConflict unless the session can be submitted."""
    if session.spec.stage is not None:
        raise StateConflict(
            f"{session.name} is not a session that trained",
            why="it was made for a submission or an inference",
            attempt=f"nsml submit {session.origin.name}" if session.origin is not None else "",
        )
    if session.imported is not None:
        raise StateConflict(
            f"{session.name} cannot be submitted",
            why=f"it was restored, and ran on {session.imported.platform}",
            attempt=f"nsml fork {session.name}    and submit that session",
        )


def _check_limits(full: str, past: PastSubmissions, settings: BoardSettings, now: float) -> None:
    next_at = next_submission(past.counted, past.failed, settings, now)
    if next_at is None:
        return
    limits = [
        _limit_text(limit, kind, times, now)
        for limit, kind, times in (
            (settings.limit, "", past.counted),
            (settings.failed_limit, "failed ", past.failed),
        )
        if limit.count
    ]
    raise SubmissionLimitReached(full, next_at, why="; ".join(limits))


def _limit_text(limit: SubmissionLimit, kind: str, times: tuple[float, ...], now: float) -> str:
    used = sum(at + limit.window_s > now for at in times)
    return f"{used} of {limit.count} {kind}submissions in {duration_text(limit.window_s)} are used"
