"""Submit: session, name, number and request id in one transaction, once for each request id."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from controlplane.content.content import SEND_IT, initial_digest
from controlplane.core.infeasible import Alternatives, refusal_of
from controlplane.domain.after import Verdict, verdict
from controlplane.domain.errors import (
    RETRY_AFTER_S,
    AlreadyExists,
    InvalidRequest,
    MissingBlobs,
    NoCapacity,
    NotFound,
    NotLeader,
    NsmlError,
    StateConflict,
    TooLarge,
    Unavailable,
)
from controlplane.domain.identity import UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.limits import NO_TIME_LIMITS, TimeLimits
from controlplane.domain.names import NO_DATASET
from controlplane.domain.sealing import check_source
from controlplane.domain.values import (
    After,
    HeldCause,
    InitialCheckpoint,
    Origin,
    Session,
    SessionSpec,
)
from controlplane.history.values import CheckpointState
from controlplane.limits.admission import Batch
from controlplane.projects.projects import check_entitled, check_keep
from controlplane.scheduler import MaxCapacity, request_of
from controlplane.sessions.after import unmet_words
from controlplane.sessions.competition_teams import check_team_quotas, within_quotas
from controlplane.sessions.new_sessions import put_sessions
from controlplane.sessions.validation import Submission, validated
from controlplane.state.live_usage import record_size
from controlplane.store.interface import (
    MAX_OPERATIONS,
    CommitUnknown,
    InvalidTransaction,
    StoreUnavailable,
)
from controlplane.stored import etcd_codec
from nsml.common.shell import shell_line
from nsml.common.units import size_text
from nsml.spec.checkpoint_retention import EXAMPLE, with_metric
from nsml.spec.request_limits import LEAST_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from controlplane.checkpoints.checkpoints import Checkpoints
    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.domain.identity import User
    from controlplane.domain.values import DatasetVersion, SecretUse
    from controlplane.environments.locks import EnvironmentLocks
    from controlplane.history.sql.history import History
    from controlplane.limits.admission import Admission
    from controlplane.scheduler import QueueQueries
    from controlplane.sessions.competition_teams import CompetitionTeams
    from controlplane.state.live_state import LiveState
    from controlplane.state.references import References
    from controlplane.store.interface import Compare, KeyValueStore
    from nsml.common.clock import Clock

MOST_AT_ONCE: Final = (MAX_OPERATIONS - 2) // 4
"""Sessions in one transaction: each writes itself, its name, its request id, perhaps a counter."""

TRIES: Final = 8
"""Tries of a submission after concurrent writes."""


class Secrets(Protocol):
    """Checks users' secrets."""

    async def check(self, owner: User, uses: Iterable[SecretUse]) -> None:
        """Raise NotFound unless the owner has all of them."""
        ...


@dataclass(slots=True)
class _Pending:
    """A submission waiting to be written; at revision `checked` its request had no session.

    `origin`: its source session. `entitled`: the condition that its project still accepts it. `size`: approximate
    bytes of its record. `teams`: teams of competitions that it counts for.
    """

    submission: Submission
    spec: SessionSpec
    origin: Origin | None
    size: int
    entitled: Compare | None
    checked: int
    done: asyncio.Future[Session | None]
    teams: tuple[str, ...] = ()


class Submitter:
    """Accepts submissions and writes waiting ones together in one transaction.

    Any control plane does this, leader or not: a transaction compares the numbers' counters and
    the absence of the request ids.

    Args:
        new_id: returns a new session id.
        answers: queries on the queue and free capacity; None if another control plane leads.
        keep_checkpoints: the default if neither session nor project sets it.
        keep_files: whether sessions keep the files of their working folder by default.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        state: LiveState,
        history: History,
        datasets: Datasets,
        content: Content,
        checkpoints: Checkpoints,
        locks: EnvironmentLocks,
        secrets: Secrets,
        references: References,
        teams: CompetitionTeams,
        clock: Clock,
        new_id: Callable[[], str],
        answers: Callable[[], QueueQueries | None],
        time_limits: TimeLimits = NO_TIME_LIMITS,
        keep_checkpoints: str = "",
        keep_files: bool = False,
        admission: Admission | None = None,
    ) -> None:
        self._keep_checkpoints = keep_checkpoints
        self._keep_files = keep_files
        self._store = store
        self._admission = admission
        self._state = state
        self._history = history
        self._datasets = datasets
        self._content = content
        self._checkpoints = checkpoints
        self._locks = locks
        self._secrets = secrets
        self._references = references
        self._teams = teams
        self._clock = clock
        self._new_id = new_id
        self._answers = answers
        self._time_limits = time_limits
        self._log = structlog.get_logger()
        self._queue: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._known_extent: tuple[int, MaxCapacity] | None = None

    async def submit(self, submission: Submission) -> Session:
        """Create the session, or return the one created before by this request id.

        Raises:
            InvalidRequest, TooLarge: the submission is malformed.
            NotFound: a dataset, origin, lock or initial checkpoint is missing or not visible, a secret is missing,
                or a project is missing or not the caller's.
            OverQuota: over the project's quota.
            LimitReached, LowOnRoom: the user or the project is at its session limit, or
                the store has no room.
            MissingBlobs: the code has not been sent, or the initial checkpoint is not kept any more.
            AlreadyExists: the request id was used with different content.
            CannotEverFit, NoCapacity: no node is large enough; nothing is free and no_queue.
            NotLeader: with no_queue, if another control plane leads.
            Unavailable: the store does not answer; repeat with the same request id.
        """
        spec = validated(submission, self._time_limits)
        is_counted = False
        for _ in range(TRIES):
            checked = self._state.revision
            earlier = await self._earlier(submission)
            if earlier is not None:
                return earlier
            source = await self._source(submission)
            origin = _origin(submission, source)
            size = self._admitted(submission, spec, origin)
            initial = await self._initial(submission, source)
            spec = replace(
                spec,
                datasets=await self._found(submission),
                initial_checkpoint=initial,
                after=await self._after(submission),
                keep_checkpoints=self._kept(submission),
                keep_files_by_default=self._keeps_files(submission),
            )
            await self._secrets.check(submission.owner, spec.secrets)
            await self._check_content(submission.owner, spec, source)
            await self._check_initial(submission.owner, initial)
            await self._locks.check_same(source, spec.environment_lock)
            teams = await self._teams.of(submission.owner, spec.datasets)
            entitled = self._check_possible(submission, spec, teams)
            if self._admission is not None and not is_counted:
                self._admission.write(submission.owner.name, size)
                await self._count_for_project(submission, spec)
                is_counted = True
            done: asyncio.Future[Session | None] = asyncio.get_running_loop().create_future()
            pending = _Pending(submission, spec, origin, size, entitled, checked, done, teams)
            self._queue.append(pending)
            self._wake.set()
            session = await done
            if session is not None:
                await self._begin(submission.owner, session)
                return session
        raise Unavailable("too many submissions at the same moment", attempt="the same again")

    async def submit_prepared(self, submission: Submission, origin: Origin | None) -> Session:
        """Create a session that the platform itself has prepared, or return the one created before by this request id.

        Its spec is complete: datasets and initial checkpoint are resolved, and reserved variables may be set. Who may
        use what was decided by whoever prepared it. It counts for its owner's limits and project, as any session.

        Raises:
            NotFound: the project is missing or not the owner's, or the initial checkpoint is not kept any more.
            OverQuota, LimitReached, LowOnRoom, CannotEverFit, Unavailable: as `submit`.
            MissingBlobs: its code, a dataset or its initial checkpoint is not kept any more.
            AlreadyExists: the request id was used with different content.
        """
        spec, owner = submission.spec, submission.owner
        is_counted = False
        for _ in range(TRIES):
            checked = self._state.revision
            earlier = await self._earlier(submission)
            if earlier is not None:
                return earlier
            size = self._admitted(submission, spec, origin)
            await self._check_kept(owner, spec)
            # What the platform makes for a submission is not its team's use of GPUs.
            entitled = self._check_possible(submission, spec, teams=())
            if self._admission is not None and not is_counted:
                self._admission.write(owner.name, size)
                await self._count_for_project(submission, spec)
                is_counted = True
            done: asyncio.Future[Session | None] = asyncio.get_running_loop().create_future()
            self._queue.append(_Pending(submission, spec, origin, size, entitled, checked, done))
            self._wake.set()
            session = await done
            if session is not None:
                await self._begin(owner, session)
                return session
        raise Unavailable("too many submissions at the same moment", attempt="the same again")

    async def _check_kept(self, owner: User, spec: SessionSpec) -> None:
        """Raise MissingBlobs unless all content of a prepared session is there; charge its owner for the checkpoint."""
        caller = UserCaller(user=owner)
        fetched = [one.digest for one in spec.datasets if not one.in_place]
        for root in filter(None, (spec.bundle_digest, *fetched, initial_digest(spec))):
            if await self._content.is_incomplete(caller, root):
                raise MissingBlobs("its content is not kept any more", why=f"manifest {root[:12]}")
        if initial_digest(spec):
            await self._content.borrow(caller, initial_digest(spec))

    async def check(self, submission: Submission) -> None:
        """Raise what `submit` would raise now, except for an earlier request and missing code."""
        spec = validated(submission, self._time_limits)
        self._kept(submission)
        source = await self._source(submission)
        self._admitted(submission, spec, _origin(submission, source))
        await self._check_initial(submission.owner, await self._initial(submission, source))
        await self._locks.check_same(source, spec.environment_lock)
        found = await self._found(submission)
        await self._secrets.check(submission.owner, spec.secrets)
        await self._after(submission)
        teams = await self._teams.of(submission.owner, found)
        self._check_possible(submission, replace(spec, datasets=found), teams)
        self._content.check_project_full(submission.project or submission.owner.name)

    def _kept(self, submission: Submission) -> str:
        """Return its checkpoint retention: its own, else its project's, else the platform's."""
        name = submission.project or submission.owner.name
        project = self._state.project(name)
        asked = check_keep(submission.spec.keep_checkpoints, of_session=True)
        above = (project.keep_checkpoints if project is not None else "", self._keep_checkpoints)
        try:
            return next(filter(None, (with_metric(asked, above), *above)), "")
        except ValueError as error:
            of_project = ["nsml", "project", "set", name, "--keep", "best:1:val/acc:max"]
            raise InvalidRequest(
                "invalid retention rules for checkpoints",
                why=str(error),
                attempt=f"{shell_line(['--keep', EXAMPLE])}\n{shell_line(of_project)}",
            ) from None

    def _keeps_files(self, submission: Submission) -> bool:
        """Whether it keeps files by default: its project's setting, else the platform's."""
        if submission.spec.keep_files or submission.spec.no_keep_files:
            return False
        project = self._state.project(submission.project or submission.owner.name)
        if project is not None and project.keep_files:
            return project.keep_files == "on"
        return self._keep_files

    async def _source(self, submission: Submission) -> Session | None:
        """Find its source session, if any, as visible to its user."""
        if submission.origin is None:
            return None
        caller = UserCaller(user=submission.owner)
        source = await self._references.find(caller, submission.origin.session)
        check_source(source)
        return source

    async def _initial(
        self, submission: Submission, source: Session | None
    ) -> InitialCheckpoint | None:
        """Find its initial checkpoint; users who see the source session may start with the same."""
        asked = submission.spec.initial_checkpoint
        if asked is None:
            return None
        inherited = source.spec.initial_checkpoint if source is not None else None
        is_inherited = inherited is not None and _key(asked) == _key(inherited)
        if inherited is not None and is_inherited and inherited.digest:
            return inherited
        caller = UserCaller(user=submission.owner)
        session = await self._references.find_output(caller, asked.session_id)
        if asked.name:
            try:
                found = await self._checkpoints.get(session, asked.name)
            except NotFound:
                if source is None or inherited is None or not is_inherited:
                    raise
                raise StateConflict(
                    f"{source.name} was restored without the checkpoint that it began with",
                    why=f"it is {inherited.name!r} of {inherited.session_name}",
                    attempt=f"nsml fork {source.name} -c CHECKPOINT    begins with another one",
                ) from None
        else:
            found = await self._checkpoints.newest(session)
        which = f"checkpoint {found.name!r} of {session.name}"
        if found.state is CheckpointState.LOST or not found.digest:
            raise StateConflict(
                f"{which} is not durable" + (": it is lost" if found.why_lost else " yet"),
                why=found.why_lost or "it is on its node only",
                attempt=f"nsml model ls {session.name}    shows which are",
            )
        if asked.digest and asked.digest != found.digest:
            raise NotFound(
                f"{which} has another content than it had",
                why="its name was saved again",
                attempt=f"nsml fork {session.name} -c {found.name}    to take the new one",
            )
        return InitialCheckpoint(
            session_id=session.id,
            name=found.name,
            digest=found.digest,
            session_name=session.name,
            saved_at=found.content_of[1],
        )

    async def _after(self, submission: Submission) -> tuple[After, ...]:
        """Find the sessions it still has to wait for, by id and name."""
        if submission.spec.after and submission.no_queue:
            raise InvalidRequest("what starts after others waits, and no_queue is not to wait")
        caller = UserCaller(user=submission.owner)
        found: list[After] = []
        for asked in submission.spec.after:
            session = await self._references.find(caller, asked.session_id)
            one = replace(asked, session_id=session.id, name=session.name)
            match verdict(one, session.state):
                case Verdict.WAITS:
                    found.append(one)
                case Verdict.NEVER:
                    raise StateConflict(
                        f"it would never start: {unmet_words([(one, session.state)])}",
                        attempt=f"nsml run --after {session.name}:any ...    to start however that one ended",
                    )
        return tuple(found)

    async def _check_initial(self, owner: User, initial: InitialCheckpoint | None) -> None:
        """Raise unless its content is complete, and count that for its user."""
        if initial is None:
            return
        caller = UserCaller(user=owner)
        if await self._content.is_incomplete(caller, initial.digest):
            raise MissingBlobs(
                f"checkpoint {initial.name!r} of {initial.session_name} is not kept any more",
                attempt=f"nsml model ls {initial.session_name}    shows others",
            )
        await self._content.borrow(caller, initial.digest)

    async def _count_for_project(self, submission: Submission, spec: SessionSpec) -> None:
        """Count its code and initial checkpoint for its project; LimitReached if that may have no more.

        Call it only after checking that its user may submit into the project.
        """
        project = submission.project or submission.owner.name
        self._content.check_project_full(project)
        caller = UserCaller(user=submission.owner)
        roots = [one for one in (spec.bundle_digest, initial_digest(spec)) if one]
        await self._content.count_for_project(caller, project, roots)

    async def _begin(self, owner: User, session: Session) -> None:
        """Give it its own initial checkpoint and lock; if that fails now, its first attempt does it.

        Access to parts of its datasets may have changed since the lookup, before it was known to be queued.
        """
        try:
            is_renewed = session.spec.datasets and not session.spec.is_confined
            if is_renewed and self._datasets.queued is not None:
                await self._datasets.queued.renew(session)
            await self._checkpoints.begin_with(UserCaller(user=owner), session)
            await self._locks.inherit(session)
        except NsmlError as error:
            self._log.warning("submission.begins_later", session=session.name, error=str(error))

    def _admitted(self, submission: Submission, spec: SessionSpec, origin: Origin | None) -> int:
        """Return the size of its record; raises if its user or project may have no more sessions."""
        owner = submission.owner.name
        size = record_size(_session(submission, spec, origin, (), id="", number=0, now=0.0))
        if self._admission is not None:
            self._admission.check_session(owner, submission.project or owner, size)
        return size

    async def _earlier(self, submission: Submission) -> Session | None:
        session = self._state.by_request(submission.owner.name, submission.request_id)
        if session is None:
            row = await self._history.catalogue.session_by_request(
                submission.owner.name, submission.request_id
            )
            session = etcd_codec.decode_session(row.record) if row else None
        if session is not None and session.request_digest != submission.digest:
            raise AlreadyExists(
                f"request id {submission.request_id} was used for {session.name}",
                why="with another content",
                attempt="a fresh request id",
            )
        return session

    async def _found(self, submission: Submission) -> tuple[DatasetVersion, ...]:
        return tuple(
            [
                await self._datasets.lookup.resolve(submission.owner, one)
                for one in submission.datasets
            ]
        )

    async def _check_content(self, owner: User, spec: SessionSpec, source: Session | None) -> None:
        """Raise unless the code is complete, and its user sent it, may read it, or sees its session."""
        root = spec.bundle_digest
        if not root:
            return
        caller = UserCaller(user=owner)
        is_of_source = source is not None and source.spec.bundle_digest == root
        may_use = is_of_source or await self._content.may_use(caller, root)
        if not may_use or await self._content.is_incomplete(caller, root):
            raise MissingBlobs(
                "the code has not been sent completely", why=f"bundle {root[:12]}", attempt=SEND_IT
            )
        await self._content.borrow(caller, root)
        if not (most := spec.limits.disk_bytes):
            return
        listing = await self._content.listing(caller, root)
        if (takes := max(listing.size, listing.file_count * LEAST_FILE_BYTES)) > most:
            raise InvalidRequest(
                f"the code takes {size_text(takes)} on disk, and the session may use {size_text(most)}",
                why=f"{listing.file_count:,} files, each of at least {LEAST_FILE_BYTES >> 10} KiB",
                attempt="more with --disk, or leave files out with a line in .nsmlignore",
            )

    def _check_possible(
        self, submission: Submission, spec: SessionSpec, teams: tuple[str, ...]
    ) -> Compare | None:
        """Raise unless quotas and nodes can let it start; return the condition that its project accepts it."""
        owner, name = submission.owner, submission.project or submission.owner.name
        nearest = Alternatives(self._extent(), partial(within_quotas, self._state, name, teams))
        request = request_of(owner.name, spec)
        entitled = check_entitled(self._state, owner, submission.project, spec, nearest)
        check_team_quotas(self._state, teams, request, nearest)
        if error := refusal_of(nearest, request, spec.image):
            raise error
        if submission.no_queue:
            self._check_free(submission, spec, teams)
        return entitled

    def _extent(self) -> MaxCapacity:
        """Return the nodes' maximum capacity; recomputed when nodes change."""
        changes = self._state.node_changes
        if self._known_extent is None or self._known_extent[0] != changes:
            nodes = (stored.value for stored in self._state.nodes.values())
            self._known_extent = (changes, MaxCapacity(nodes))
        return self._known_extent[1]

    def _check_free(
        self, submission: Submission, spec: SessionSpec, teams: tuple[str, ...]
    ) -> None:
        """Raise NoCapacity if the session would wait in the queue; only the leader knows."""
        answers, now = self._answers(), self._clock.time()
        if answers is None:
            raise NotLeader("")
        session = _session(submission, spec, None, teams, id=self._new_id(), number=0, now=now)
        waits = answers.would_start(session, now).deferral
        if waits is not None:
            raise NoCapacity(
                "nothing is free now",
                why=waits.explanation.reason,
                attempt="nsml run --queue ...    to wait for it",
            )

    async def run(self) -> None:
        """Write submissions until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    count = min(len(self._queue), MOST_AT_ONCE)
                    await self._write([self._queue.popleft() for _ in range(count)])
        finally:
            for pending in self._queue:
                _fail(pending, _silent())

    async def _write(self, batch: list[_Pending]) -> None:
        """Write them; resolve each with its session, or None to be checked again."""
        made: dict[tuple[str, str], Session] = {}
        try:
            made = await self._made(self._fresh(batch))
        except InvalidTransaction:
            # Together they are too many bytes; one alone should be far below the bound.
            half = len(batch) // 2
            if not half:
                self._log.error("submission.too_large", request=batch[0].submission.request_id)
                _fail(batch[0], TooLarge("the session is larger than any record may be"))
                return
            await self._write(batch[:half])
            await self._write(batch[half:])
        except (CommitUnknown, StoreUnavailable) as error:
            self._log.warning("submission.unavailable", error=str(error))
            for pending in batch:
                _fail(pending, _silent())
        finally:
            for pending in batch:
                if not pending.done.done():
                    key = (pending.submission.owner.name, pending.submission.request_id)
                    session = made.get(key)
                    is_its = session and session.request_digest == pending.submission.digest
                    pending.done.set_result(session if is_its else None)

    def _fresh(self, batch: list[_Pending]) -> dict[tuple[str, str], _Pending]:
        """Return the writable ones: each request once, if it has got no session since (even a removed one).

        Their users' limits are checked here again, one by one, since many arrive at once.
        """
        fresh: dict[tuple[str, str], _Pending] = {}
        admitted = Batch()
        for pending in batch:
            key = (pending.submission.owner.name, pending.submission.request_id)
            has_come = self._state.by_request(*key) is not None
            if has_come or self._state.has_left_since(*key, pending.checked) or key in fresh:
                continue
            if self._admission is not None:
                owner = pending.submission.owner.name
                whose = owner, pending.submission.project or owner, pending.size
                try:
                    self._admission.check_session(*whose, admitted)
                except TooLarge as error:
                    _fail(pending, error)
                    continue
                admitted.add(*whose)
            fresh[key] = pending
        return fresh

    async def _made(self, fresh: dict[tuple[str, str], _Pending]) -> dict[tuple[str, str], Session]:
        """Write all in one transaction; returns nothing after a concurrent write."""
        if not fresh:
            return {}
        last: dict[str, int] = {}
        sessions: dict[tuple[str, str], Session] = {}
        for key, pending in fresh.items():
            counter = etcd_codec.counter_key(pending.submission.owner.name, _dataset(pending.spec))
            if counter not in last:
                known = self._state.counters.get(counter)
                last[counter] = known.value if known else 0
            last[counter] += 1
            sessions[key] = _session(
                pending.submission,
                pending.spec,
                pending.origin,
                pending.teams,
                id=self._new_id(),
                number=last[counter],
                now=self._clock.time(),
            )
        entitled = {one.entitled for one in fresh.values() if one.entitled is not None}
        result = await self._commit(sessions, last, entitled)
        return sessions if result else {}

    async def _commit(
        self,
        sessions: dict[tuple[str, str], Session],
        last: dict[str, int],
        entitled: Collection[Compare],
    ) -> bool:
        revision = await put_sessions(self._store, self._state, sessions.values(), last, entitled)
        if revision:
            self._log.info("submission.committed", sessions=len(sessions), revision=revision)
        return bool(revision)


def _key(initial: InitialCheckpoint) -> tuple[str, str, str]:
    return (initial.session_id, initial.name, initial.digest)


def _origin(submission: Submission, source: Session | None) -> Origin | None:
    if submission.origin is None or source is None:
        return None
    return Origin(kind=submission.origin.kind, session_id=source.id, name=source.name)


def _fail(pending: _Pending, error: NsmlError) -> None:
    if not pending.done.done():
        pending.done.set_exception(error)


def _silent() -> NsmlError:
    """Build the error. A retry must use the same request id: the write may have succeeded."""
    return Unavailable(
        "the platform's store does not answer",
        attempt="the same request id again",
        retry_after_s=RETRY_AFTER_S,
    )


def _dataset(spec: SessionSpec) -> str:
    return spec.datasets[0].name if spec.datasets else NO_DATASET


def _session(
    submission: Submission,
    spec: SessionSpec,
    origin: Origin | None,
    teams: tuple[str, ...],
    *,
    id: str,  # noqa: A002
    number: int,
    now: float,
) -> Session:
    owner: User = submission.owner
    return Session(
        id=id,
        name=f"{owner.name}/{_dataset(spec)}/{number}",
        owner=owner.name,
        owner_id="" if owner.id == owner.name else owner.id,
        spec=spec,
        created_at=now,
        project=submission.project or owner.name,
        team=owner.team,
        visibility=submission.visibility,
        memo=submission.memo,
        command=submission.command,
        request_id=submission.request_id,
        request_digest=submission.digest,
        origin=origin,
        git=submission.git,
        state=SessionState.HELD if spec.after else SessionState.QUEUED,
        held_cause=HeldCause.AFTER if spec.after else None,
        competition_teams=teams,
    )
