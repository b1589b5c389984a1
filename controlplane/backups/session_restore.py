"""Restores sessions of backups: all data of a session is written first, then the session appears at once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.backups.restored_sessions import foreign_dataset, request_id_of, restored
from controlplane.content.content import SEND_IT
from controlplane.core.compare_and_swap import store_unavailable
from controlplane.datasets.references import parse_dataset
from controlplane.domain.errors import (
    RETRY_AFTER_S,
    InvalidRequest,
    LimitReached,
    MissingBlobs,
    NotFound,
    NsmlError,
    TooLarge,
    Unavailable,
)
from controlplane.domain.names import check_digest
from controlplane.history.sql.artifacts import MOST_OF_SESSION
from controlplane.history.values import Channel, Chunk
from controlplane.limits.concurrency_limits import Turns
from controlplane.limits.free_space import HISTORY
from controlplane.records.report_limits import CHUNK_BYTES, RECORD_BYTES
from controlplane.records.reported_config import restored_config
from controlplane.sessions.new_sessions import put_sessions
from controlplane.sessions.validation import MOST_DATASETS
from controlplane.state.live_usage import record_size
from controlplane.store.interface import CommitUnknown, InvalidTransaction, StoreUnavailable
from controlplane.stored import etcd_codec
from nsml.common.concurrency import to_its_end
from nsml.content.media import MOST_OF_SESSION as MOST_MEDIA
from nsml.spec.reported_config import MOST_LEAVES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from controlplane.content.content import Content
    from controlplane.datasets.lookup import DatasetLookup
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import DatasetVersion, InitialCheckpoint, Session
    from controlplane.environments.locks import EnvironmentLocks
    from controlplane.history.sql.history import History
    from controlplane.history.values import Artifact, Checkpoint, ConfigValue, Media
    from controlplane.limits.admission import Admission
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock
    from nsml.v1 import session_backups_pb2 as pb
    from nsml.v1 import sessions_pb2
    from nsml.v1.sessions_pb2 import DatasetReference

MOST_CHECKPOINTS: Final = 100_000
MOST_STREAMS: Final = 100_000
LARGEST_POSITION: Final = 1 << 53
WRITTEN_BYTES: Final = 1 << 20
WRITTEN_PARTS: Final = 512
"""Size of a written batch of stream parts."""
LEFT_AFTER_S: Final = 2 * 86_400.0
"""Age at which unfinished restores of killed control planes are removed: none takes as long."""
LOOK_EVERY_S: Final = 3600.0
MOST_S: Final = 6 * 3600.0
"""Time limit of a restore."""
IDLE_S: Final = 600.0
"""Idle timeout of a restore."""
MOST_RESTORING: Final = 64
MOST_RESTORING_EACH: Final = 2
"""Concurrent restores, in all and per user; further ones wait."""
_TRIES: Final = 8

_log = structlog.get_logger()


@dataclass(slots=True)
class Restoring:
    """A running restore for `caller`; `session` is the future session, built from `message`.

    `extents`: bytes and files of manifests already counted for the caller.
    """

    caller: UserCaller
    message: pb.RestoredSession
    session: Session
    checkpoints: int = 0
    artifacts: int = 0
    streams: set[tuple[int, int, int, bool]] = field(default_factory=set)
    waiting: list[tuple[Chunk, float]] = field(default_factory=list)
    waiting_bytes: int = 0
    extents: dict[str, tuple[int, int]] = field(default_factory=dict)
    media: tuple[str, Mapping[str, int]] = ("", MappingProxyType({}))


class Restorer:
    """Runs on any control plane. `new_id` creates a session id."""

    def __init__(
        self,
        *,
        store: KeyValueStore,
        state: LiveState,
        history: History,
        content: Content,
        datasets: DatasetLookup,
        locks: EnvironmentLocks,
        admission: Admission,
        clock: Clock,
        new_id: Callable[[], str],
        cluster_id: str,
    ) -> None:
        self._store = store
        self._state = state
        self._history = history
        self._content = content
        self._datasets = datasets
        self._locks = locks
        self._admission = admission
        self._clock = clock
        self._new_id = new_id
        self._cluster_id = cluster_id
        self.turns = Turns("to restore a session", slots=MOST_RESTORING, each=MOST_RESTORING_EACH)

    async def there(self, caller: UserCaller, message: pb.RestoredSession) -> Session | None:
        """Return the caller's existing session: restored before, or the original."""
        owner, request_id = caller.user.name, request_id_of(message)
        found = self._state.by_request(owner, request_id)
        catalogue = self._history.catalogue
        if found is None and (row := await catalogue.session_by_request(owner, request_id)):
            found = etcd_codec.decode_session(row.record)
        if found is None and message.platform == self._cluster_id:
            found = self._state.session(message.session.id)
            if found is None and (row := await catalogue.session(message.session.id)):
                found = etcd_codec.decode_session(row.record)
            if found is not None and found.owner != owner:
                return None
        return found

    async def check(self, caller: UserCaller, message: pb.RestoredSession) -> Session:
        """Build and check the session, without its number. Raises InvalidRequest, TooLarge, LimitReached."""
        if len(message.session.spec.datasets) > MOST_DATASETS:
            raise TooLarge(f"a session has at most {MOST_DATASETS} datasets")
        session = restored(
            message,
            caller.user,
            await self._datasets_of(caller, message),
            id=self._new_id(),
            now=self._clock.time(),
        )
        size = record_size(session)
        self._admission.check_session(session.owner, session.project, size)
        self._admission.check_history()
        self._content.check_project_full(session.project)
        return session

    async def _datasets_of(
        self, caller: UserCaller, message: pb.RestoredSession
    ) -> tuple[DatasetVersion, ...]:
        references = message.session.spec.datasets
        return tuple([await self._dataset(caller, message, one) for one in references])

    async def _dataset(
        self, caller: UserCaller, message: pb.RestoredSession, one: DatasetReference
    ) -> DatasetVersion:
        """Return the version if it has this content and the caller may read it; else only its name, which grants no access."""
        if one.digest and not one.in_place:
            try:
                return await self._datasets.resolve(
                    caller.user,
                    parse_dataset(
                        one.name,
                        one.version,
                        check_digest(one.digest),
                        streamed=one.streamed,
                        folder=one.folder,
                    ),
                )
            except NotFound:
                pass
        return foreign_dataset(one, message.session.owner)

    async def begin(self, caller: UserCaller, message: pb.RestoredSession) -> Restoring:
        """Check a session and its code, and start writing its data. `end` or `give_up` must follow."""
        session = await self.check(caller, message)
        restoring = Restoring(caller, message, session)
        if session.spec.bundle_digest:
            await self._extent(restoring, session.spec.bundle_digest, "the code")
        await self._check_initial(restoring)
        self._admission.write(session.owner, record_size(session))
        async with self.given_up_if_it_fails(restoring):
            await self._history.restores.begin(session.id, self._clock.time())
            if message.environment_lock:
                await self._locks.restore(session.id, message.environment_lock)
            if message.session.HasField("reported_config"):
                await self._restore_config(session.id, message.session.reported_config)
        return restoring

    async def _restore_config(self, session_id: str, message: sessions_pb2.ReportedConfig) -> None:
        """Record the configuration that the programs of a session reported. Raises InvalidRequest."""
        if len(message.runs) > MOST_LEAVES:
            raise TooLarge(f"a session has at most {MOST_LEAVES:,} values of configurations")
        values: list[ConfigValue] = []
        is_cut = message.is_cut
        for one in message.runs:
            try:
                config = restored_config(session_id, one.origin, one.run, one.json)
            except ValueError as error:
                raise InvalidRequest("a configuration is not valid", why=str(error)) from None
            values += config.values
            is_cut |= config.is_cut
        cut = [session_id] if is_cut else []
        if values or cut:
            await self._history.reported_config.tell(values, cut=cut)

    async def _check_initial(self, restoring: Restoring) -> None:
        """Drop the content of its initial checkpoint if the caller has not sent it.

        Its name is kept, so that forks of the session report it.
        """
        initial = restoring.session.spec.initial_checkpoint
        if initial is None or not initial.digest:
            return
        try:
            await self._extent(restoring, initial.digest, _of_start(initial))
        except MissingBlobs:
            _set_initial(restoring, replace(initial, digest=""))

    async def add_checkpoint(
        self, restoring: Restoring, checkpoint: Checkpoint, tags: Sequence[str]
    ) -> None:
        """Write a checkpoint; MissingBlobs if its content was not sent."""
        restoring.checkpoints += 1
        if restoring.checkpoints > MOST_CHECKPOINTS:
            raise TooLarge(f"a restored session has at most {MOST_CHECKPOINTS:,} checkpoints")
        if checkpoint.digest:
            what = f"checkpoint {checkpoint.name[:80]!r}"
            size, count = await self._extent(restoring, checkpoint.digest, what)
            checkpoint = replace(checkpoint, size_bytes=size, file_count=count)
            initial = restoring.session.spec.initial_checkpoint
            if initial is not None and initial.digest == checkpoint.digest:
                _set_initial(restoring, replace(initial, saved_at=checkpoint.saved_at))
        await self._history.catalogue.put_checkpoint(checkpoint)
        for tag in tags:
            await self._history.checkpoint_marks.tag(
                checkpoint.session_id, tag, checkpoint.name, most=1_000
            )

    async def add_artifact(self, restoring: Restoring, artifact: Artifact) -> None:
        """Write a version of an artifact; MissingBlobs if its content was not sent."""
        restoring.artifacts += 1
        if restoring.artifacts > MOST_OF_SESSION:
            raise TooLarge(f"{MOST_OF_SESSION:,} artifacts are kept of one session")
        if artifact.digest:
            what = f"artifact {artifact.name[:80]!r}"
            size, count = await self._extent(restoring, artifact.digest, what)
            artifact = replace(artifact, size_bytes=size, file_count=count)
        folder = f"{restoring.artifacts}-restored"
        await self._history.artifacts.restore([replace(artifact, folder=folder)])

    async def add_media(self, restoring: Restoring, media: Media) -> None:
        """Write a media file of the session; MissingBlobs if its content was not sent."""
        if media.root:
            if restoring.media[0] != media.root:
                _, count = await self._extent(restoring, media.root, f"media {media.name[:80]!r}")
                if count > MOST_MEDIA:
                    raise TooLarge(f"{MOST_MEDIA:,} media files are kept of one session")
                found = await self._content.listing(
                    restoring.caller, media.root, is_with_sizes=True
                )
                restoring.media = media.root, found.sizes or {}
            if media.file not in restoring.media[1]:
                raise InvalidRequest(f"{media.file[:12]} is not in {media.root[:12]}")
            media = replace(media, size_bytes=restoring.media[1][media.file])
        if await self._history.media.tell([media]):
            raise TooLarge("more media than are kept of one session")

    async def add_part(
        self, restoring: Restoring, part: pb.StreamPart, chunk: Chunk, received_at: float
    ) -> None:
        """Add the next part of a stream."""
        restoring.streams.add((part.attempt, part.rank, part.writer, part.is_log))
        if len(restoring.streams) > MOST_STREAMS or chunk.last > LARGEST_POSITION:
            raise TooLarge("more streams, or longer ones, than a session has")
        size = len(chunk.data) + sum(map(len, chunk.records)) + RECORD_BYTES * len(chunk.records)
        session = restoring.session
        is_log = chunk.stream.channel is Channel.LOG
        size = max(size, CHUNK_BYTES)
        if self._admission.report(session.owner, session.id, size, is_log=is_log):
            raise LimitReached(
                "the session reported more than you may add to this platform's history in a day",
                attempt="the same tomorrow, or ask an administrator",
            )
        if self._admission.is_low(HISTORY):
            raise Unavailable("the platform's history is almost full", retry_after_s=RETRY_AFTER_S)
        now = self._clock.time()
        restoring.waiting.append((chunk, min(received_at, now) or now))
        restoring.waiting_bytes += size
        if restoring.waiting_bytes >= WRITTEN_BYTES or len(restoring.waiting) >= WRITTEN_PARTS:
            await self._write_parts(restoring)

    async def _write_parts(self, restoring: Restoring) -> None:
        chunks, restoring.waiting, restoring.waiting_bytes = restoring.waiting, [], 0
        if chunks:
            await self._history.streams.append_as_of(chunks)

    async def end(self, restoring: Restoring) -> Session:
        """Create the session; return another one if it was restored meanwhile from the same source.

        If it is unknown whether the store committed it, the written data is kept: `sweep` decides.
        """
        async with self.given_up_if_it_fails(restoring):
            await self._write_parts(restoring)
        try:
            made = await self._made(restoring)
        except TooLarge:
            await self.give_up(restoring)
            raise
        if made.id == restoring.session.id:
            await self._history.restores.end(made.id)
        else:
            await self.give_up(restoring)
        return made

    async def _made(self, restoring: Restoring) -> Session:
        session, owner = restoring.session, restoring.session.owner
        for _ in range(_TRIES):
            row = await self._history.catalogue.session_by_request(owner, session.request_id)
            known = self._state.by_request(owner, session.request_id)
            if known is not None:
                return known
            if row is not None:
                return etcd_codec.decode_session(row.record)
            session = await self._found_again(restoring)
            _, dataset, _ = session.name.split("/")
            counter = etcd_codec.counter_key(owner, dataset)
            stored = self._state.counters.get(counter)
            number = self._number(session, stored.value if stored else 0)
            named = replace(session, name=f"{owner}/{dataset}/{number}")
            try:
                if await put_sessions(self._store, self._state, [named], {counter: number}):
                    _log.info("restore.committed", session=named.name)
                    return named
            except InvalidTransaction as error:
                raise TooLarge("the session is larger than any record may be") from error
            except (CommitUnknown, StoreUnavailable) as error:
                raise store_unavailable() from error
        raise Unavailable("too many sessions at the same moment", attempt="the same again")

    async def _found_again(self, restoring: Restoring) -> Session:
        """Check code, initial checkpoint and datasets again, since they may have been removed while the rest was sent.

        Gives the restore up if they are missing.
        """
        session = restoring.session
        async with self.given_up_if_it_fails(restoring):
            if session.spec.bundle_digest:
                await self._extent(restoring, session.spec.bundle_digest, "the code")
            initial = session.spec.initial_checkpoint
            if initial is not None and initial.digest:
                await self._extent(restoring, initial.digest, _of_start(initial))
            datasets = await self._datasets_of(restoring.caller, restoring.message)
        return replace(session, spec=replace(session.spec, datasets=datasets))

    @staticmethod
    def _number(session: Session, last: int) -> int:
        """Return its old number if it was the same user's and is higher than any used here; else the next one."""
        if session.imported is not None and session.imported.name.startswith(f"{session.owner}/"):
            number = session.imported.name.rpartition("/")[2]
            if number.isdecimal() and len(number) < 10 and int(number) > last:
                return int(number)
        return last + 1

    @asynccontextmanager
    async def given_up_if_it_fails(self, restoring: Restoring) -> AsyncIterator[None]:
        """Give a restore up if the block fails or is cancelled."""
        try:
            yield
        except BaseException:
            await self.give_up(restoring)
            raise

    async def give_up(self, restoring: Restoring) -> None:
        """Remove the written data, even if the call is cancelled. If that fails now, `sweep` does it later."""
        await to_its_end(self._remove(restoring.session.id))

    async def _remove(self, session_id: str) -> None:
        try:
            await self._history.catalogue.delete_session(session_id)
            await self._history.restores.end(session_id)
        except NsmlError as error:
            _log.warning("restore.not_removed", session=session_id, reason=error.message)

    async def _extent(self, restoring: Restoring, root: str, what: str) -> tuple[int, int]:
        """Return bytes and files of a manifest the caller sent, or may read; count it for the caller and the project.

        Its completeness is checked each time, just before something refers to it: see `object_gc.py`.
        """
        known = restoring.extents.get(check_digest(root))
        who = restoring.caller
        is_sent = known is not None or await self._content.may_use(who, root)
        if not is_sent or await self._content.is_incomplete(who, root):
            raise MissingBlobs(f"{what} has not been sent completely", attempt=SEND_IT)
        if known is not None:
            return known
        await self._content.borrow(who, root)
        await self._content.count_for_project(who, restoring.session.project, [root])
        found = await self._content.listing(who, root)
        restoring.extents[root] = found.size, found.file_count
        return found.size, found.file_count

    async def run(self) -> NoReturn:
        """Clean up after killed control planes, on the leader, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                await self.sweep()
            except NsmlError as error:
                _log.warning("restore.not_swept", reason=error.message)

    async def sweep(self) -> int:
        """Clean up restores that began long ago; return how many."""
        left = await self._history.restores.begun_before(self._clock.time() - LEFT_AFTER_S)
        for session_id in left:
            is_there = self._state.session(session_id) is not None
            if is_there or await self._history.catalogue.session(session_id) is not None:
                await self._history.restores.end(session_id)
            else:
                await self._remove(session_id)
        return len(left)


def _of_start(initial: InitialCheckpoint) -> str:
    return f"checkpoint {initial.name[:80]!r}, with which the session began,"


def _set_initial(restoring: Restoring, initial: InitialCheckpoint) -> None:
    session = restoring.session
    restoring.session = replace(session, spec=replace(session.spec, initial_checkpoint=initial))
