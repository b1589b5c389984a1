"""Makes the sessions of a submission's steps from what is there when they start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import structlog

from controlplane.datasets.references import DatasetReference
from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BoardKind,
    SubmissionCause,
)
from controlplane.domain.errors import (
    AlreadyExists,
    CannotEverFit,
    InvalidRequest,
    MissingBlobs,
    NotFound,
    StateConflict,
    TooLarge,
)
from controlplane.domain.values import (
    DatasetVersion,
    InitialCheckpoint,
    Origin,
    OriginKind,
    Session,
    Visibility,
)
from controlplane.history.values import CheckpointState
from controlplane.sessions.validation import Submission as Prepared
from controlplane.submissions.dataset_trees import no_dry_runs, trees_of
from controlplane.submissions.pipeline import Fail, Stage
from controlplane.submissions.steps import (
    StepLimits,
    evaluate_spec,
    input_folder,
    predict_spec,
    test_dataset,
)
from nsml.spec.competition_datasets import TEST_SUBMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.domain.boards.values import BoardSettings
    from controlplane.domain.identity import User
    from controlplane.domain.values import SessionSpec
    from controlplane.history.board_values import SubmissionRow
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing
    from controlplane.sessions.submit import Submitter
    from controlplane.state.references import References
    from controlplane.submissions.dataset_trees import SubmissionTrees
    from controlplane.submissions.results import Results

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Waits:
    """It cannot be made now: one sentence for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """It can never be made."""

    fail: Fail


Made: TypeAlias = Session | Waits | Refused | None
"""A session, made now or by an earlier call for the same try; None: there is nothing to do in this step."""


def step_request(submission_id: str, stage: Stage, number: int, evaluation: int = 0) -> str:
    """Return the request id of the session of a try; `evaluation`: of a re-evaluation, 0: the first one."""
    which = f"{stage}-{evaluation}" if evaluation else f"{stage}"
    return f"submission/{submission_id}/{which}/{number}"


class SessionMaker:
    """Makes sessions of steps; a repeated call for the same try gives the same session.

    Args:
        user: returns a user by name; raises NotFound.
    """

    def __init__(
        self,
        *,
        history: History,
        references: References,
        content: Content,
        datasets: Datasets,
        results: Results,
        submitter: Submitter,
        user: Callable[[str], Awaitable[User]],
    ) -> None:
        self._history = history
        self._references = references
        self._content = content
        self._datasets = datasets
        self._results = results
        self._submitter = submitter
        self._user = user

    async def settings(self, owner: str, dataset: str) -> BoardSettings:
        """Return the settings of a dataset's board."""
        row = await self._history.boards.get(owner, dataset, BoardKind.DATASET)
        return row.settings if row is not None else DEFAULT_SETTINGS[BoardKind.DATASET]

    async def predict(self, row: SubmissionRow, number: int) -> Made:
        """Make the session of a try of a prediction."""
        source = await self._references.by_id(row.session_id)
        if source is None:
            return _removed(f"the session {row.session} was removed")
        initial = await self._initial(row, source)
        if not isinstance(initial, InitialCheckpoint):
            return initial
        found = await self._dataset(row, row.dataset_version)
        if not isinstance(found, _Found):
            return found
        user = await self._owner(row)
        if user is None:
            return _removed(f"the user {row.owner} was removed")
        try:
            further = await self._further(user, source)
        except NotFound as error:
            return _removed(error.message)
        lock = await self._history.environment_locks.facts_of(source.id)
        limits = await self._limits(row)
        first = test_dataset(
            found.listing,
            found.trees,
            folder=source.spec.datasets[0].folder,
            is_test=row.is_test,
        )
        spec = predict_spec(
            source.spec,
            submission_id=row.id,
            datasets=(first, *further),
            initial=initial,
            environment_lock=lock.digest if lock is not None else source.spec.environment_lock,
            limits=limits,
            folder=input_folder(found.trees, is_test=row.is_test),
            is_test=row.is_test,
            batch=row.batch,
        )
        request_id = step_request(row.id, Stage.PREDICT, number)
        return await self._make(row, user, spec, request_id, source.project)

    async def evaluate(self, row: SubmissionRow, number: int, *, evaluation: int = 0) -> Made:
        """Make the session of a try of an evaluation; `evaluation`: of this version of scores, 0: the first one."""
        state = await self._history.submissions.evaluation(row.dataset_owner, row.dataset)
        # What the other scores of this version were made with, so that all can be compared.
        version = state.dataset_version if evaluation else state.shown_dataset_version
        version = version or row.dataset_version
        found = await self._dataset(row, version)
        if not isinstance(found, _Found):
            return found
        folder = input_folder(found.trees, is_test=row.is_test)
        if row.is_test and folder != TEST_SUBMIT:
            return None
        settings = await self.settings(row.dataset_owner, row.dataset)
        try:
            prediction_bytes = await self._results.size(row.prediction_digest)
        except NotFound:
            return Refused(Fail(SubmissionCause.PLATFORM, "the prediction is not kept any more"))
        spec = evaluate_spec(
            submission_id=row.id,
            listing=found.listing,
            trees=found.trees,
            participant=row.owner,
            prediction=row.prediction_digest,
            prediction_bytes=prediction_bytes,
            limits=await self._limits(row),
            folder=folder,
            is_twice=bool(settings.check_every) and row.number % settings.check_every == 0,
        )
        request_id = step_request(row.id, Stage.EVALUATE, number, evaluation)
        return await self._make(row, found.owner, spec, request_id, "")

    async def _make(
        self, row: SubmissionRow, user: User, spec: SessionSpec, request_id: str, project: str
    ) -> Made:
        prepared = Prepared(
            owner=user,
            request_id=request_id,
            digest=request_id.encode(),
            spec=spec,
            memo=f"submit of {row.session}",
            visibility=Visibility.PRIVATE,
            project=project,
        )
        origin = Origin(kind=OriginKind.SUBMISSION, session_id=row.session_id, name=row.session)
        try:
            return await self._submitter.submit_prepared(prepared, origin)
        except MissingBlobs as error:
            return _removed(f"{error.message}: {error.why}")
        except (TooLarge, CannotEverFit, StateConflict, NotFound) as error:
            # A limit, a quota, a project or nodes: they may change.
            return Waits(": ".join(filter(None, (error.message, error.why))))
        except (AlreadyExists, InvalidRequest) as error:
            _log.error("submission.step_refused", submission=row.id, reason=str(error))
            return Refused(Fail(SubmissionCause.PLATFORM))

    async def _initial(
        self, row: SubmissionRow, source: Session
    ) -> InitialCheckpoint | Waits | Refused:
        """Return the submitted checkpoint, once it is in the object store."""
        found = await self._history.catalogue.checkpoint(source.id, row.checkpoint)
        digest = row.checkpoint_digest
        if not digest:
            if found is None:
                return _removed(f"the checkpoint {row.checkpoint!r} was removed")
            if found.state is CheckpointState.LOST:
                return _removed(f"the checkpoint {row.checkpoint!r} is lost: {found.why_lost}")
            if not found.digest:
                return Waits(f"the upload of checkpoint {row.checkpoint!r} is not over")
            digest = found.digest
        return InitialCheckpoint(
            session_id=source.id,
            name=row.checkpoint,
            digest=digest,
            session_name=source.name,
            saved_at=found.content_of[1] if found is not None else row.submitted_at,
        )

    async def _dataset(self, row: SubmissionRow, version: int) -> _Found | Refused:
        """Find the dataset as it is now, and its trees."""
        full = f"{row.dataset_owner}/{row.dataset}"
        listing = await self._history.catalogue.dataset(row.dataset_owner, row.dataset, version)
        if listing is None:
            return _removed(f"version {version} of {full} was removed")
        try:
            owner = await self._user(row.dataset_owner)
        except NotFound:
            return _removed(f"{row.dataset_owner}, the owner of {full}, was removed")
        try:
            trees = await trees_of(self._content, owner, listing)
        except StateConflict as error:
            why = f"{error.message}: {error.why}"
            return Refused(Fail(SubmissionCause.PLATFORM, why))
        if row.is_test and not trees.dry_run_folder:  # hidden since it was submitted
            refused = no_dry_runs(listing)
            return _removed(f"{refused.message}: {refused.why}")
        return _Found(listing=listing, trees=trees, owner=owner)

    async def _owner(self, row: SubmissionRow) -> User | None:
        """Return the participant; None: removed, even if the name has another user since."""
        try:
            user = await self._user(row.owner)
        except NotFound:
            return None
        return user if row.owner_id in {"", user.id} else None

    async def _further(self, user: User, source: Session) -> tuple[DatasetVersion, ...]:
        """Return the other datasets of the session, with the files that its user may have now.

        Raises:
            NotFound: one was removed, or is not visible any more.
        """
        return tuple(
            [
                await self._datasets.lookup.resolve(
                    user,
                    DatasetReference(
                        owner=one.owner, name=one.name, version=one.version, folder=one.folder
                    ),
                )
                for one in source.spec.datasets[1:]
            ]
        )

    async def _limits(self, row: SubmissionRow) -> StepLimits:
        settings = await self.settings(row.dataset_owner, row.dataset)
        return StepLimits(
            predict_s=settings.predict_s,
            evaluate_s=settings.evaluate_s,
            prediction_bytes=settings.prediction_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A dataset version, its trees and its owner."""

    listing: DatasetListing
    trees: SubmissionTrees
    owner: User


def _removed(why: str) -> Refused:
    return Refused(Fail(SubmissionCause.REMOVED, why))
