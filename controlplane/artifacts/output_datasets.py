"""Output folders of successful sessions become versions of their owners' datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import (
    LimitReached,
    LowOnRoom,
    MissingBlobs,
    NsmlError,
    Unavailable,
)
from controlplane.domain.identity import UserCaller
from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.values import Cause
from controlplane.history.values import Artifact, DatasetLineage, DatasetUse
from nsml.spec.output_datasets import NO_VERSION, artifact_folder, output_dataset

if TYPE_CHECKING:
    from controlplane.access.accounts import Accounts
    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.state.replica_reports import Report

_RETRY_AFTER_S: Final = 0.25
"""Delay of an agent's first retry; later ones wait longer."""

_log = structlog.get_logger()


class OutputDatasets:
    """Creates the versions before their session counts as ended: its last replica waits for the answer."""

    def __init__(
        self, *, history: History, datasets: Datasets, content: Content, accounts: Accounts
    ) -> None:
        self._history = history
        self._datasets = datasets
        self._content = content
        self._accounts = accounts

    def check_over(self, session: Session, artifact: Artifact) -> None:
        """Raise Unavailable for an output folder until its session's result is known."""
        is_current = session.attempt == artifact.attempt and not session.state.is_ended
        if (
            is_output(session, artifact)
            and is_current
            and session.state is not SessionState.FINALIZING
        ):
            raise Unavailable(
                f"{session.name} has not ended yet",
                why="its output becomes a dataset when it has",
                retry_after_s=_RETRY_AFTER_S,
            )

    async def make(self, session: Session, artifact: Artifact, digest: str) -> None:
        """Create a dataset version from an output folder in the object store. Idempotent.

        Permanent errors are recorded with the artifact. Raises transient ones: Unavailable, StoreError, MissingBlobs.
        """
        if not is_output(session, artifact):
            return
        end = session.end
        if session.attempt != artifact.attempt or end is None or end.cause is not Cause.COMPLETED:
            await self._refused(session, artifact, f"attempt {artifact.attempt} did not succeed")
            return
        try:
            await self._make(session, artifact.name, digest)
            await self._history.artifacts.note(artifact, "")
        except (Unavailable, MissingBlobs):
            raise
        except (LimitReached, LowOnRoom) as error:
            raise Unavailable(
                f"{artifact.name!r} cannot become a dataset now",
                why=error.message,
                attempt=error.attempt,
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        except NsmlError as error:
            await self._refused(session, artifact, error.message)

    async def _make(self, session: Session, name: str, digest: str) -> None:
        caller = UserCaller(user=await self._accounts.get_user(session.owner))
        made = await self._history.catalogue.made_by(session.id)
        if any((one.name, attempt) == (name, session.attempt) for one, attempt in made):
            return  # already created; the answer was lost
        if await self._is_version(session, name, digest):
            return
        self._content.show(caller, digest)
        listing, is_new = await self._datasets.pushes.create_version(
            caller,
            name=name,
            digest=digest,
            visibility=None,
            message="",
            lineage=await self._lineage(session),
        )
        _log.info(
            "output_dataset.made",
            session=session.name,
            dataset=name,
            version=listing.version.number,
            is_new=is_new,
        )

    async def _is_version(self, session: Session, name: str, digest: str) -> bool:
        """Whether content was the newest version when the session's program ended, or became one since.

        Then no version is created, not even by a retry after other pushes.
        """
        ended_at = next((one.heard_at for one in session.replicas if one.rank == 0), 0.0)
        for one in await self._history.catalogue.dataset_versions(session.owner, name):
            if one.whole_digest == digest:
                return True
            if one.version.created_at < (ended_at or session.created_at):
                return False
        return False

    async def _lineage(self, session: Session) -> DatasetLineage:
        lock = await self._history.environment_locks.facts_of(session.id)
        return DatasetLineage(
            session_id=session.id,
            session=session.name,
            attempt=session.attempt,
            code=session.spec.bundle_digest,
            environment_lock=lock.digest if lock else session.spec.environment_lock,
            command=session.command,
            datasets=tuple(
                DatasetUse(one.owner, one.name, one.version) for one in session.spec.datasets
            ),
        )

    async def _refused(self, session: Session, artifact: Artifact, why: str) -> None:
        _log.warning(
            "output_dataset.not_made", session=session.name, dataset=artifact.name, reason=why
        )
        await self._history.artifacts.note(artifact, f"{NO_VERSION}{why}")


def left_by(session: Session, report: Report) -> list[Artifact]:
    """Return the output folders on a node after the report of a successful replica.

    Its agent reports a result for each, even for a missing one, so that missing results are noticed.
    """
    if report.rank or report.phase is not ReplicaPhase.EXITED or report.attempt != session.attempt:
        return []
    if report.exit is None or report.exit.cause is not Cause.COMPLETED:
        return []
    if not any(one.rank == 0 and one.node == report.node for one in session.replicas):
        return []
    return [
        Artifact(
            session_id=session.id,
            attempt=report.attempt,
            rank=0,
            folder=artifact_folder(number),
            name=output_dataset(text).name,
            saved_at=report.at,
            node=report.node,
        )
        for number, text in enumerate(session.spec.output_datasets)
    ]


def is_output(session: Session, artifact: Artifact) -> bool:
    """Whether it is an output folder of its session: agents number these from 00, programs from 1."""
    outputs = {output_dataset(one).name for one in session.spec.output_datasets}
    return artifact.rank == 0 and artifact.folder.startswith("0") and artifact.name in outputs
